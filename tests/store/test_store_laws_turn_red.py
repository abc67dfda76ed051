"""The store broken on purpose: the random histories must notice each fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_store_histories import test_whatever_happens_the_laws_hold as histories

from shoal.core.consistency import Consistency
from shoal.store import answers
from shoal.store import operations as ops
from shoal.store.answered import Answered
from shoal.store.board import Board, Refused
from shoal.store.committing import Committing
from shoal.store.holdings import Holdings
from shoal.store.staging import Staging
from shoal.store.sums import Contribution

pytestmark = [pytest.mark.unit, pytest.mark.mutation]


def a_repeated_push_is_applied_twice(self: Answered, change: ops.Change, version: int) -> answers.Answer | None:
    return None if isinstance(change, ops.Push | ops.PushPull) else right_find(self, change, version)


def a_repeated_commit_or_lease_is_carried_out_again(
    self: Answered, change: ops.Change, version: int
) -> answers.Answer | None:
    return None if isinstance(change, ops.Commit | ops.Lease) else right_find(self, change, version)


def a_snapshot_forgets_what_was_answered(self: Answered) -> list[Any]:
    return []


def the_bound_is_off_by_one(self: Consistency, clock: int, slowest: int) -> bool:
    return self.bound is None or clock <= slowest + self.bound + 1


def the_bound_is_too_tight_by_one(self: Consistency, clock: int, slowest: int) -> bool:
    return self.bound is None or clock < slowest + self.bound


def a_task_is_committed_without_its_update(
    self: Holdings, pairs: Any, shaping: Any, rates: Any, expendable: bool = False
) -> None:
    right_apply(self, [] if expendable else pairs, shaping, rates, expendable)


def an_update_is_committed_without_its_task(
    self: Board, stretch: int, task: int, worker: str, staleness: int = 0
) -> Refused | None:
    return self.check(stretch, task, worker)


def anyone_may_commit_any_task(self: Board, stretch: int, task: int, worker: str) -> Refused | None:
    return None


def a_committed_task_is_refused_but_its_update_applied(self: Committing, operation: ops.Commit) -> answers.Answer:
    missing = self.staging.missing(operation.transaction, operation.parts)
    if operation.transaction not in self.log and not missing:
        pairs = self._contributions(operation.transaction, operation.parts)
        self._holdings.apply(pairs, operation.shaping, operation.rates)
    return right_commit(self, operation)


def parts_that_are_not_named_are_committed_too(
    self: Staging, transaction: str, parts: tuple[int, ...]
) -> dict[str, list[Contribution]]:
    return right_contributions(self, transaction, tuple(self.transactions.get(transaction, {})))


def parts_outlive_their_commit(self: Staging, transaction: str, part: int | None = None) -> None:
    """Memory of one step is still there in the next."""


def staged_memory_is_given_back_and_used(self: Staging, transaction: str, part: int, updates: Any) -> None:
    right_stage(self, transaction, part, updates)
    for one in self.transactions[transaction][part].values():
        self.pool.give_back(one.values)


def the_lost_keep_their_tasks(self: Board, worker: str) -> None:
    self.clocks.pop(worker, None)


def the_lost_are_waited_for(self: Board, worker: str) -> None:
    clock = self.clocks.get(worker, 0)
    right_release(self, worker)
    self.clocks[worker] = clock


def who_joins_starts_at_zero(self: Board, worker: str) -> None:
    self.clocks.setdefault(worker, 0)


right_find, right_apply, right_commit = Answered.find, Holdings.apply, Committing.commit
right_contributions, right_stage, right_release = Staging.contributions, Staging.stage, Board.release

FAULTS: list[tuple[type, str, Callable[..., Any]]] = [
    (Answered, "find", a_repeated_push_is_applied_twice),
    (Answered, "find", a_repeated_commit_or_lease_is_carried_out_again),
    (Answered, "dump", a_snapshot_forgets_what_was_answered),
    (Consistency, "allows", the_bound_is_off_by_one),
    (Consistency, "allows", the_bound_is_too_tight_by_one),
    (Holdings, "apply", a_task_is_committed_without_its_update),
    (Board, "commit", an_update_is_committed_without_its_task),
    (Board, "check", anyone_may_commit_any_task),
    (Committing, "commit", a_committed_task_is_refused_but_its_update_applied),
    (Staging, "contributions", parts_that_are_not_named_are_committed_too),
    (Staging, "drop", parts_outlive_their_commit),
    (Staging, "stage", staged_memory_is_given_back_and_used),
    (Board, "release", the_lost_keep_their_tasks),
    (Board, "release", the_lost_are_waited_for),
    (Board, "join", who_joins_starts_at_zero),
]


@pytest.mark.parametrize(("owner", "name", "fault"), FAULTS, ids=[fault.__name__ for _, _, fault in FAULTS])
def test_a_fault_in_the_store_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable[..., Any]
) -> None:
    assert hasattr(owner, name)
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises((AssertionError, ExceptionGroup)):
        histories()
