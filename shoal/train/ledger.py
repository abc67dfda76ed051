"""What a run has done, beside the model itself: it moves with every act, and goes to newcomers together with the model.

An *act* is what all workers do together and either all of them have done or must do again: a step, an evaluation, a
save. Whoever has completed an act needed every other worker for it, so two workers are never more than one act apart:
after the loss of a worker the others compare their counts, and who is behind takes over state and result of who is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.core.arrivals import NOTHING, Instalment
from shoal.core.cursor import Cursor
from shoal.core.errors import CheckpointError
from shoal.core.staleness import Staleness

Result = Any  # plain JSON


@dataclass
class Ledger:
    """Where the run is. `due` is what is left to do after the last step; `asked` is what the user's own loop has asked
    for so far, with the result: by it a newcomer passes over what the others have behind them."""

    cursor: Cursor = field(default_factory=Cursor)
    data: str | None = None  # a digest of what is trained on, where that is known
    acts: int = 0  # completed
    result: Result = None  # of the last one
    due: list[str] = field(default_factory=list)
    asked: list[tuple[int, str, Result]] = field(default_factory=list)  # at which step, what, result
    values: dict[str, float] = field(default_factory=dict)  # of the latest evaluation
    evaluated: Cursor | None = None  # the state that it was of
    saved: Cursor | None = None
    stopping: str = ""
    staleness: Staleness = field(default_factory=Staleness)  # of the updates so far
    arrivals: Instalment = NOTHING  # where the data grows: what the epoch trains on

    def complete(self, result: Result) -> None:
        """An act is done."""
        self.acts += 1
        self.result = result

    def answer(self, step: int, number: int) -> tuple[str, Result] | None:
        """What the loop asked for as its request `number` at `step`, and what came of it; None if it did not yet."""
        found = [(what, result) for at, what, result in self.asked if at == step]
        return found[number] if number < len(found) else None

    def go_on_with(self, data: str | None) -> None:
        """A run goes on with the data that it was begun with; None is not compared. Raises `CheckpointError`."""
        if None not in (self.data, data) and self.data != data:
            raise CheckpointError(
                f"the checkpoint was written for other training data (a digest of its samples: {self.data} against "
                f"{data}): a stream must give the same samples, in the same order, when a run goes on. Use the "
                "same data, or another --run-dir"
            )
        self.data = data

    def to_json(self) -> dict[str, Any]:
        return {
            "cursor": self.cursor.to_json(),
            "data": self.data,
            "acts": self.acts,
            "result": self.result,
            "due": list(self.due),
            "asked": [list(one) for one in self.asked],
            "values": self.values,
            "evaluated": self.evaluated.to_json() if self.evaluated is not None else None,
            "saved": self.saved.to_json() if self.saved is not None else None,
            "stopping": self.stopping,
            "staleness": self.staleness.to_json(),
            "arrivals": self.arrivals.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ledger:
        return cls(
            cursor=Cursor.from_json(data["cursor"]),
            data=data.get("data"),
            acts=int(data["acts"]),
            result=data["result"],
            due=list(data["due"]),
            asked=[(int(step), str(what), result) for step, what, result in data["asked"]],
            values=dict(data["values"]),
            evaluated=Cursor.from_json(data["evaluated"]) if data["evaluated"] is not None else None,
            saved=Cursor.from_json(data["saved"]) if data["saved"] is not None else None,
            stopping=str(data["stopping"]),
            staleness=Staleness.from_json(data["staleness"]) if "staleness" in data else Staleness(),
            arrivals=Instalment.from_json(data["arrivals"]) if "arrivals" in data else NOTHING,
        )
