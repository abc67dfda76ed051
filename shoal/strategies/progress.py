"""How far a trainer has come in a round, and who keeps that when the members of teams change. Pure.

Local work is kept by exactly one team: else its samples would shape the model twice, or be lost without need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.strategies.base import Span


@dataclass
class Progress:
    """Units done in this round, with what was computed in each. `owner` names the trainer whose work it is; members of
    one team have the same owner and, but for a step that broke, the same units."""

    owner: str = ""
    done: dict[int, tuple[Span, ...]] = field(default_factory=dict)
    samples: int = 0
    loss_sum: float = 0.0
    loss_weight: float = 0.0
    computing_s: float = 0.0
    failed: bool = False  # a loss was not finite

    def to_json(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "done": [[unit, [[s.start, s.stop, s.digest] for s in spans]] for unit, spans in self.done.items()],
            "samples": self.samples,
            "loss": [self.loss_sum, self.loss_weight],
            "computing_s": self.computing_s,
            "failed": self.failed,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Progress:
        done = {int(unit): tuple(Span(*map(int, span)) for span in spans) for unit, spans in data["done"]}
        return cls(
            str(data["owner"]), done, int(data["samples"]), float(data["loss"][0]), float(data["loss"][1]),
            float(data["computing_s"]), bool(data["failed"]),
        )  # fmt: skip


def heirs(teams: Sequence[Sequence[int]], owners: Sequence[str], counts: Sequence[int]) -> list[int | None]:
    """For each team the member whose local work it goes on with, None where it begins anew.

    `teams` are lists of ranks; `owners` and `counts` say by rank whose work each worker has and how many units. The
    work of one owner goes to the first team that has it, from whoever is furthest; of several a team takes the most.
    """
    taken: set[str] = set()
    found: list[int | None] = []
    for team in teams:
        offered = [rank for rank in team if counts[rank] > 0 and owners[rank] not in taken]
        heir = min(offered, key=lambda rank: (-counts[rank], rank), default=None)
        # what others of this owner have done less of is the same work: the furthest of all must be in this team
        if heir is not None and any(
            owners[rank] == owners[heir] and counts[rank] > counts[heir] for rank in range(len(owners))
        ):
            found.append(None)
            continue
        if heir is not None:
            taken.add(owners[heir])
        found.append(heir)
    return found
