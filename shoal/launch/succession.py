"""Whether a run goes on without a worker, and whether another one takes its place: a policy, without processes."""

from __future__ import annotations

from shoal.core.config import ElasticSettings
from shoal.launch.failure import Account

REPEATS = 3  # so many workers that break down by themselves at the same step: the next one would, too


class Succession:
    """Two budgets: for faults, and for workers that were told to go. Used up, the run goes on with who is left."""

    def __init__(self, terms: ElasticSettings) -> None:
        self.terms = terms
        self.restarts = 0
        self.preemptions = 0
        self._breakdowns: list[int] = []  # steps of the last ones, which were all the same

    def survives(self, account: Account, step: int, begun: bool) -> bool:
        """Whether the run goes on without a worker that ended so. `begun`: some worker has taken part in a view.

        What comes from outside (a kill, a freeze) may come again or not. What a worker does to itself, it does again
        where nothing has changed: before the first step, and where several have done it at one step already.
        """
        if account.kind in ("user", "disk", "peer"):
            return False
        if account.kind in ("exception", "exit") and self.terms.on_error == "stop":
            return False
        if not account.from_within:
            return True
        if self._breakdowns and self._breakdowns[-1] != step:
            self._breakdowns.clear()
        self._breakdowns.append(step)
        return begun and len(self._breakdowns) < REPEATS

    def replace(self, preempted: bool) -> tuple[int, int] | None:
        """Take from the budget: which replacement this is, and of how many; None where it is used up."""
        if preempted:
            if self.preemptions >= self.terms.max_preemptions:
                return None
            self.preemptions += 1
            return self.preemptions, self.terms.max_preemptions
        if self.restarts >= self.terms.max_restarts:
            return None
        self.restarts += 1
        return self.restarts, self.terms.max_restarts
