"""A program run by one worker whom nothing happens to: what a hurt run is compared with, besides plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from shoal.checkpoint.catalog import Catalog
from shoal.core.errors import CheckpointError
from shoal.drill.scene import Event
from shoal.testing.soak.conduct import Evidence
from shoal.testing.soak.network import make_model
from shoal.testing.soak.oracle import Truth, whole_loss
from shoal.testing.soak.program import Program


@dataclass(frozen=True)
class Calm:
    """`bits` is the digest of its parameters."""

    bits: str
    truth: Truth

    @classmethod
    def of(cls, program: Program, seen: Evidence) -> Calm | None:
        """What the evidence of a calm run says; None where it says nothing."""
        found = parameters(seen.run_dir, program.steps)
        if found is None:
            return None
        losses, model = losses_of(seen.events), make_model(program)
        first = whole_loss(model, program)
        model.load_state_dict(found, strict=False)  # what is tied is saved once
        truth = Truth(
            tuple(losses[step] for step in sorted(losses)),
            {name: found[name] for name, _ in model.named_parameters()},
            {name: found[name] for name, _ in model.named_buffers()},
            whole_loss(model, program, test=True),
            first,
            whole_loss(model, program),
        )
        return cls(str(seen.summary.get("params_sha256")), truth)


def parameters(run_dir: Path, step: int) -> dict[str, Tensor] | None:
    """Parameters and buffers of the newest checkpoint, if that is of `step`."""
    try:
        checkpoint = Catalog(run_dir / "checkpoints").newest_valid(lambda message: None)
    except CheckpointError:
        return None
    if checkpoint is None or checkpoint.cursor.step != step:
        return None
    pieces = checkpoint.state.pieces
    return {name.removeprefix("model."): pieces[name].tensor for name in pieces if name.startswith("model.")}


def losses_of(events: Iterable[Event]) -> dict[int, float]:
    """By step; of one that was done twice, the last."""
    steps = (event for event in events if event.get("kind") == "step")
    return {int(event["cursor"]["step"]) - 1: float(event["loss"]) for event in steps}
