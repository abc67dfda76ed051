"""The parameters of two runs compared, from their last checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.checkpoint.catalog import Catalog
from shoal.core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_MODEL = "model."
# running statistics are no parameters, and where they are large they would hide a difference in those
_STATISTICS = (".running_mean", ".running_var")


def relative_difference(calm: Path, hurt: Path) -> float | None:
    """The norm of the difference over the norm, of all parameters together, in float64.

    Takes two run directories. None where one has no checkpoint, the last ones are of different steps, or they hold
    different tensors: then there is nothing to compare.
    """
    ours, theirs = _last(calm), _last(hurt)
    if ours is None or theirs is None or ours[0] != theirs[0] or ours[1].keys() != theirs[1].keys():
        return None
    difference = norm = 0.0
    for name, tensor in ours[1].items():
        other = theirs[1][name]
        if tensor.shape != other.shape:
            return None
        a, b = tensor.double(), other.double()
        difference += float((a - b).square().sum())
        norm += float(a.square().sum())
    return math.sqrt(difference) / math.sqrt(norm) if norm else math.sqrt(difference)


def has_final(run: Path, step: int) -> bool:
    """Whether the run has a checkpoint after its last step."""
    return any(entry.step == step for entry in Catalog(run / "checkpoints").entries())


def _last(run: Path) -> tuple[int, dict[str, Tensor]] | None:
    """The step and the parameters of the newest checkpoint."""
    try:
        checkpoint = Catalog(run / "checkpoints").newest_valid(lambda _: None)
    except CheckpointError:
        return None
    if checkpoint is None:
        return None
    found = {
        name: piece.tensor
        for name, piece in checkpoint.state.pieces.items()
        if name.startswith(_MODEL) and not name.endswith(_STATISTICS) and piece.tensor.is_floating_point()
    }
    return checkpoint.cursor.step, found
