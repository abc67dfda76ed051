"""Which state a change is meant for: whoever writes a state from outside makes void what belonged to the one before.

Commits, their records, staged parts and tasks tell what was done to a state. When a run goes back to a checkpoint while
its servers live, that story is not the new state's: a record of before would have a step taken for done that was never
applied to what was loaded. So a state has an era, whatever is done to it names that, and both are replicated and saved
together.
"""

from __future__ import annotations

from shoal.store import operations as ops
from shoal.store.answers import Answer, Done
from shoal.store.answers import Eras as Told
from shoal.store.holdings import Holdings, Ways
from shoal.store.refusal import Refusal


class Eras:
    """By run, the era that its state is in. Raises `Refusal` before anything is changed."""

    def __init__(self, holdings: Holdings) -> None:
        self.numbers: dict[str, int] = {}
        self._holdings = holdings

    def ways(self) -> Ways:
        return {ops.Begin: self.begin, ops.GetEras: self.get}

    def check(self, change: ops.Change) -> None:
        """Refuse what was meant for a state that is no more."""
        era = change.era
        if era is not None and self.numbers.get(era.run) != era.number:
            now = self.numbers.get(era.run)
            raise Refusal("era", f"this was meant for era {era.number} of run {era.run}, which is in era {now} here")

    def begin(self, operation: ops.Begin) -> Answer:
        highest = max(self.numbers.values(), default=0)
        if operation.number <= highest:
            raise Refusal("era", f"era {operation.number} of run {operation.run} cannot begin after era {highest}")
        self.numbers[operation.run] = operation.number
        return Done(self._holdings.version)

    def get(self, operation: ops.GetEras) -> Answer:
        return Told(self._holdings.version, dict(self.numbers))
