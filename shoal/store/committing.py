"""Updates that are staged first and take effect together: what one server does for a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.store import operations as ops
from shoal.store.answers import Answer, Committed, Done, Logged, Recalled, Recorded, Squares, StagedParts
from shoal.store.board import Board
from shoal.store.dealing import heed
from shoal.store.held import Held
from shoal.store.holdings import Holdings, Ways
from shoal.store.refusal import Refusal
from shoal.store.staging import Staging
from shoal.store.sums import Contribution


class Committing:
    """Stages and commits updates of `holdings`, with tasks of `board`. Raises `Refusal` before anything is changed."""

    def __init__(self, holdings: Holdings, board: Board) -> None:
        self.commits = 0  # the number of the last commit
        self.staging = Staging(holdings.pool)
        self.log: dict[str, Logged] = {}  # by transaction, oldest first
        self._holdings = holdings
        self._board = board

    def ways(self) -> Ways:
        return {
            ops.Remove: self.remove,
            ops.Stage: self.stage,
            ops.Norms: self.norms,
            ops.Commit: self.commit,
            ops.Drop: self.drop,
            ops.Staged: self.staged,
            ops.Recall: self.recall,
            ops.Records: self.records,
            ops.Forget: self.forget,
        }

    def remove(self, operation: ops.Remove) -> Answer:
        for where in operation.where:
            self._holdings.find(where)
        for where in operation.where:
            self._holdings.held.pop(where, None)
            self.staging.remove(where)
        return self._done()

    def stage(self, operation: ops.Stage) -> Answer:
        if operation.transaction in self.log:
            raise Refusal("committed", f"transaction {operation.transaction} is committed already")
        checked = self._holdings.check(operation.updates)
        part = {held.label: one for held, one in checked}
        if len(part) < len(checked):
            raise Refusal("mismatch", f"part {operation.part} of {operation.transaction} names a slice twice")
        self.staging.stage(operation.transaction, operation.part, part)
        return self._done()

    def norms(self, operation: ops.Norms) -> Answer:
        shaping = replace(operation.shaping, scale=1.0)
        pairs = self._contributions(operation.transaction, operation.parts)
        self._holdings.check_terms([held for held, _ in pairs], shaping, ())
        return Squares(self._holdings.version, sum(held.squares(parts, shaping) for held, parts in pairs))

    def commit(self, operation: ops.Commit) -> Answer:
        if (known := self.log.get(operation.transaction)) is not None:
            scale = known.commit.shaping.rate_scale
            return Committed(self._holdings.version, known.number, known.staleness, scale, before=True)
        pairs = self._contributions(operation.transaction, operation.parts)
        self._holdings.check_terms([held for held, _ in pairs], operation.shaping, operation.rates)
        if operation.number is not None and operation.number != self.commits + 1:
            raise Refusal("out of turn", f"commit {self.commits + 1} is next, not {operation.number}")
        task = operation.task
        if task is not None:
            heed(self._board.check(task.stretch, task.number, task.worker))
        staleness, shaping = self._staleness(operation)
        self._holdings.apply(pairs, shaping, operation.rates, expendable=True)  # from here on nothing is refused
        if shaping.limits is not None and operation.era is not None:
            self._holdings.limit(shaping.limits, operation.era.run)
        if task is not None:
            heed(self._board.commit(task.stretch, task.number, task.worker, staleness))
        self.staging.drop(operation.transaction)
        self.commits += 1
        effect = replace(operation, shaping=shaping, damping=False, task=None)
        self.log[operation.transaction] = Logged(self.commits, staleness, effect)
        return Committed(self._holdings.version, self.commits, staleness, shaping.rate_scale)

    def _contributions(self, transaction: str, parts: tuple[int, ...]) -> list[tuple[Held, Sequence[Contribution]]]:
        """What these parts say, by slice in the order of declaration."""
        if missing := self.staging.missing(transaction, parts):
            raise Refusal("missing part", f"parts {missing} of transaction {transaction} are not staged")
        found = self.staging.contributions(transaction, parts)
        return [(held, found[label]) for label, held in self._holdings.held.items() if label in found]

    def _staleness(self, operation: ops.Commit) -> tuple[int, ops.Shaping]:
        """How many versions old the update is, and how it is to be applied therefore."""
        version, read = self._holdings.version, operation.read_version
        staleness = 0 if read is None else max(0, version - read)
        damped = operation.shaping.rate_scale / (1 + staleness if operation.damping else 1)
        return staleness, replace(operation.shaping, rate_scale=damped)

    def drop(self, operation: ops.Drop) -> Answer:
        self.staging.drop(operation.transaction, operation.part)
        return self._done()

    def staged(self, operation: ops.Staged) -> Answer:
        staged = ((name, tuple(sorted(parts))) for name, parts in self.staging.transactions.items())
        return StagedParts(self._holdings.version, tuple(staged))

    def recall(self, operation: ops.Recall) -> Answer:
        return Recalled(self._holdings.version, tuple(self._after(operation.after)), self.commits)

    def records(self, operation: ops.Records) -> Answer:
        remembered, era = self._after(operation.after), operation.era
        return Recorded.of(self._holdings.version, [one for one in remembered if era in (None, one.commit.era)])

    def _after(self, number: int) -> list[Logged]:
        """The remembered commits later than this number, oldest first."""
        return [one for one in self.log.values() if one.number > number]

    def forget(self, operation: ops.Forget) -> Answer:
        self.log = {name: one for name, one in self.log.items() if one.number > operation.upto}
        return self._done()

    def _done(self) -> Done:
        return Done(self._holdings.version)
