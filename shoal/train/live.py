"""The live state of a run: the model, and the record of which samples have shaped it. It is what a checkpoint
holds and what a newcomer is given, so law 2 holds for both: state and record are never apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shoal.core.coverage import CoverageTotals
from shoal.core.state import Piece, ShardedState
from shoal.train.ledger import Ledger

_COUNTS = "coverage.counts"


@dataclass(frozen=True)
class Live:
    """Everything that moves with a step. `counts` are those of the current epoch, by sample, for all workers;
    `epoch_loss` is the sum and weight of its losses."""

    state: ShardedState
    counts: Tensor
    finished: CoverageTotals
    epoch_loss: tuple[float, float]
    ledger: Ledger

    def parts(self, opened: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As plain values and tensors, views of the live ones, with what was agreed on when the run was `opened`."""
        pieces = self.state.pieces
        head = {
            "places": {name: [list(piece.shape), list(piece.offset)] for name, piece in pieces.items()},
            "values": dict(self.state.values),
            "finished": self.finished.to_json(),
            "epoch_loss": list(self.epoch_loss),
            "ledger": self.ledger.to_json(),
            "opened": dict(opened),
        }
        return head, {**{name: piece.tensor for name, piece in pieces.items()}, _COUNTS: self.counts}

    @classmethod
    def of(cls, head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Live:
        """The inverse of `parts`."""
        pieces = {
            name: Piece(tensors[name], tuple(shape), tuple(offset)) for name, (shape, offset) in head["places"].items()
        }
        return cls(
            ShardedState(pieces, head["values"]),
            tensors[_COUNTS],
            CoverageTotals.from_json(head["finished"]),
            (head["epoch_loss"][0], head["epoch_loss"][1]),
            Ledger.from_json(head["ledger"]),
        )
