"""The best model so far, as a directory of its own: ``best/model.safetensors`` holds the tensors, by the names of the
module's `state_dict`; ``best/best.json`` says of which step it is, what was measured, and by what it is the best."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from shoal.checkpoint.durable import replacing, write_file
from shoal.checkpoint.format import Checkpoint
from shoal.checkpoint.model_state import PREFIX
from shoal.checkpoint.tensorfile import TensorFile

DIRECTORY = "best"
MODEL = "model.safetensors"
FACTS = "best.json"


@dataclass(frozen=True)
class Best:
    """Which model is the best by `monitor`, and what was measured of it."""

    step: int
    epoch: int
    samples: int
    monitor: str
    mode: Literal["min", "max"]
    values: dict[str, float]

    @property
    def value(self) -> float:
        return self.values[self.monitor]

    def beats(self, other: Best | None) -> bool:
        """Whether this one is better. What is no number beats nothing; what was judged by another value counts not."""
        if math.isnan(self.value):
            return False
        if other is None or (other.monitor, other.mode) != (self.monitor, self.mode):
            return True
        return self.value < other.value if self.mode == "min" else self.value > other.value


def export(run_dir: Path, checkpoint: Checkpoint, best: Best) -> None:
    """Make the model of `checkpoint` the best one. Who reads the directory meanwhile finds the old one or the new.

    Raises OSError for a disk that cannot be written; the old one is there then.
    """
    stored = {name: piece.tensor for name, piece in checkpoint.state.pieces.items() if name.startswith(PREFIX)}
    # tied parameters are stored once, but a state_dict has all names
    aliases = checkpoint.state.values.get("aliases", {})
    whole = {**stored, **{name: stored[first] for name, first in aliases.items()}}
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in whole.items()}
    file = TensorFile(tensors)
    file.fill(tensors)
    text = json.dumps(asdict(best), indent=2) + "\n"
    with replacing(run_dir / DIRECTORY) as temporary:
        write_file(temporary / MODEL, file.chunks())
        write_file(temporary / FACTS, [memoryview(text.encode())])


def exported(run_dir: Path) -> Best | None:
    """The best so far; None where there is none, or where it cannot be told what it is."""
    try:
        best = Best(**json.loads((run_dir / DIRECTORY / FACTS).read_text()))
        return best if isinstance(best.value, float) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
