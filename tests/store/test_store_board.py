"""The board: who is given which task, who waits for whom, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import Client, W, ones

from shoal.core.consistency import ASP, BSP, SSP, Consistency
from shoal.store import answers
from shoal.store import operations as ops
from shoal.store.board import Board, Leased, NothingLeft, Refused, Wait

pytestmark = pytest.mark.unit


def opened(count: int, consistency: Consistency, *workers: str) -> Board:
    board = Board()
    assert board.open(1, count, consistency, workers) is None
    return board


def work(board: Board, worker: str) -> None:
    leased = board.lease(worker)
    assert isinstance(leased, Leased), leased
    assert board.commit(1, leased.task, worker) is None


def test_tasks_are_given_out_in_order_and_one_at_a_time() -> None:
    board = opened(3, ASP(), "a", "b")
    assert [board.lease(worker) for worker in ("a", "b", "a")] == [Leased(0), Leased(1), Leased(0)]
    assert board.commit(1, 0, "a") is None
    assert board.lease("a") == Leased(2)
    assert board.free == 0


def test_nothing_is_left_only_when_all_is_committed() -> None:
    board = opened(2, ASP(), "a", "b")
    board.lease("a")
    work(board, "b")
    assert board.lease("b") == Wait("leased", ("a",))
    board.release("a")
    assert board.lease("b") == Leased(0), "the task of the lost one is there to be done"
    assert board.commit(1, 0, "b") is None
    assert board.lease("b") == NothingLeft()
    assert board.finished


def test_a_stretch_without_tasks_is_finished() -> None:
    assert opened(0, BSP(), "a").lease("a") == NothingLeft()


def test_a_closed_stretch_ends_with_the_tasks_that_somebody_has_had() -> None:
    board = opened(10, ASP(), "a", "b", "c")
    for worker in ("a", "b", "c"):
        board.lease(worker)
    board.release("c")
    assert board.close(2) == Refused("stretch 2 cannot be closed: 1 is open")
    assert board.close(1) is None
    assert board.commit(1, 0, "a") is None
    assert board.lease("a") == Leased(2), "what the lost one had is still to be done"
    assert board.close(1) is None, "again changes nothing"
    restored = Board()
    restored.restore(json.loads(json.dumps(board.dump())))
    for one in (board, restored):
        assert one.open(1, 10, ASP(), ("a", "b")) is None, "who comes back finds it as it is"
        assert one.open(1, 3, ASP(), ("a", "b")) is not None
        assert one.commit(1, 2, "a") is None
        assert one.lease("a") == Wait("leased", ("b",))
        assert one.commit(1, 1, "b") is None
        assert [one.lease("a"), one.lease("b"), one.count] == [NothingLeft(), NothingLeft(), 3]


@pytest.mark.parametrize(("consistency", "ahead"), [(BSP(), 1), (SSP(0), 1), (SSP(2), 3), (SSP(5), 6)])
def test_a_worker_is_stopped_exactly_at_the_bound(consistency: Consistency, ahead: int) -> None:
    board = opened(100, consistency, "quick", "slow", "slower")
    for _ in range(ahead):
        work(board, "quick")
    assert board.lease("quick") == Wait("bound", ("slow", "slower"))
    work(board, "slow")
    assert board.lease("quick") == Wait("bound", ("slower",))
    board.lease("slower")
    assert board.lease("quick") == Wait("bound", ("slower",)), "begun is not committed"
    assert board.commit(1, board.leases["slower"], "slower") is None
    assert isinstance(board.lease("quick"), Leased)
    assert board.leads[consistency.bound or 0] >= 1
    assert max(board.leads) == consistency.bound


def test_nobody_waits_under_asp() -> None:
    board = opened(50, ASP(), "quick", "frozen")
    board.lease("frozen")
    for _ in range(49):
        work(board, "quick")
    assert max(board.leads) == 48


def test_nobody_waits_for_the_lost() -> None:
    board = opened(10, BSP(), "a", "b")
    work(board, "a")
    assert isinstance(board.lease("a"), Wait)
    board.release("b")
    assert isinstance(board.lease("a"), Leased)
    assert board.lease("b") == Refused("b takes no part in stretch 1: it has to join first")


def test_who_joins_starts_with_the_slowest() -> None:
    board = opened(100, SSP(1), "a", "b")
    for _ in range(3):
        work(board, "b")
        work(board, "a")
    work(board, "a")
    board.join("c")
    assert board.clocks == {"a": 4, "b": 3, "c": 3}
    board.join("a")
    assert board.clocks["a"] == 4, "who takes part already goes on as it was"
    for worker in ("a", "b", "c"):
        board.release(worker)
    board.join("d")
    assert board.clocks == {"d": 0}
    work(board, "d")


def test_what_is_not_ones_own_is_refused() -> None:
    board = opened(5, ASP(), "a", "b")
    board.lease("a")
    board.lease("b")
    before = board.dump()
    assert board.commit(1, 0, "b") == Refused("task 0 is not in the hands of b")
    assert board.commit(1, 3, "a") == Refused("task 3 is not in the hands of a")
    assert board.commit(2, 0, "a") == Refused("task 0 of stretch 2: stretch 1 is open")
    assert board.commit(1, 0, "nobody") == Refused("task 0 is not in the hands of nobody")
    assert board.dump() == before
    assert board.commit(1, 0, "a") is None
    assert board.commit(1, 0, "a") == Refused("task 0 is committed already")
    board.release("b")
    assert board.commit(1, 1, "b") == Refused("task 1 is not in the hands of b"), "it was released: too late"


def test_stretches_follow_each_other() -> None:
    board = opened(1, BSP(), "a")
    assert board.open(1, 1, BSP(), ("a", "b")) is None
    assert board.open(1, 2, BSP(), ("a",)) == Refused("stretch 1 is open with 1 tasks, bsp")
    assert board.open(2, 5, BSP(), ("a",)) == Refused("stretch 2 cannot begin: 1 tasks of stretch 1 are not committed")
    work(board, "a")
    assert board.open(2, 5, SSP(1), ("a", "b")) is None
    assert board.clocks == {"a": 0, "b": 0}
    assert board.open(1, 1, BSP(), ("a",)) == Refused("stretch 1 is over: 2 is open")
    board.lease("a")
    assert board.open(3, 2, ASP(), ("b",), instead=True) is None
    assert board.lease("b") == Leased(0)
    assert board.commit(2, 0, "a") == Refused("task 0 of stretch 2: stretch 3 is open")


_SPEEDS = st.lists(st.integers(0, 3), min_size=40, max_size=150)


@given(history=_SPEEDS, workers=st.integers(2, 4), staleness=st.integers(0, 3))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_updates_are_never_older_than_the_bound_implies(history: list[int], workers: int, staleness: int) -> None:
    """A worker reads when it begins. While it works, each other one commits at most 2 s + 1 times: from s behind to
    s + 1 ahead. So no update is older than that, whatever the speeds; and some are as old as s."""
    names = [f"worker {number}" for number in range(workers)]
    board = opened(10_000, SSP(staleness), *names)
    version, read = 0, dict.fromkeys(names, 0)
    for pick in history:
        name = names[pick % workers]
        if name in board.leases:
            age = version - read[name]
            assert age <= (workers - 1) * (2 * staleness + 1)
            assert board.commit(1, board.leases[name], name, age) is None
            version += 1
        elif isinstance(board.lease(name), Leased):
            read[name] = version
    assert max(board.staleness, default=0) <= (workers - 1) * (2 * staleness + 1)
    assert max(board.leads, default=0) <= staleness
    assert sum(board.staleness.values()) == version == len(board.committed)


def test_a_board_comes_back_as_it_was() -> None:
    board = opened(20, SSP(2), "a", "b", "c")
    for worker in ("a", "b", "a", "c"):
        work(board, worker)
    board.lease("b")
    board.lease("c")
    board.release("c")
    again = Board()
    again.restore(json.loads(json.dumps(board.dump())))
    assert again.dump() == board.dump()
    assert again.lease("a") == board.lease("a") == Leased(5), "the task that was given back comes first"
    assert again.dump() == board.dump()


# ---- on a shard: a commit is an update and its task, together


def test_an_update_and_its_task_are_committed_together_or_not_at_all() -> None:
    client = Client()
    client.declare()
    client.done(ops.Open, 1, 2, "ssp:1", ("a", "b"))
    assert client.change(ops.Lease, "a") == answers.Leased(0, 1, 0)
    client.stage("s", 0, ones())
    before = client.shard.dump()[0]["board"]
    for task in (ops.Task(1, 1, "a"), ops.Task(1, 0, "b"), ops.Task(2, 0, "a")):
        refused = client.refused(ops.Commit, transaction="s", parts=(0,), task=task)
        assert refused.reason == "board"
    missing = client.refused(ops.Commit, transaction="s", parts=(0, 1), task=ops.Task(1, 0, "a"))
    assert missing.reason == "missing part"
    assert client.values(W) == [0.0] * 6
    assert client.shard.dump()[0]["board"] == before
    client.commit("s", 0, task=ops.Task(1, 0, "a"), read_version=0)
    assert client.values(W) == [1.0] * 6
    progress = client.shard.do(ops.GetProgress())
    assert progress == answers.Progress(1, 1, 2, (0,), {}, {"a": 1, "b": 0}, {0: 1}, {0: 1})


def test_operations_on_the_board_are_answered() -> None:
    client = Client()
    assert client.refused(ops.Lease, "a").reason == "board"
    assert client.refused(ops.Open, 1, 2, "spp:1", ("a",)).reason == "mismatch"
    assert client.refused(ops.Open, 1, -2, "asp", ("a",)).reason == "mismatch"
    client.done(ops.Open, 1, 2, "bsp", ("a", "b"))
    lease = ops.Lease("a", **client.ticket())
    first = client.shard.do(lease)
    assert client.shard.do(lease) == first == answers.Leased(0, 1, 0)
    client.commit("s", task=ops.Task(1, 0, "a"))
    assert client.change(ops.Lease, "a") == answers.Wait(1, "bound", ("b",))
    client.done(ops.Release, "b")
    client.done(ops.Join, "c")
    assert client.change(ops.Lease, "c") == answers.Leased(1, 1, 1)
    assert client.change(ops.Lease, "a") == answers.Wait(1, "leased", ("c",))
    client.commit("t", task=ops.Task(1, 1, "c"))
    assert client.change(ops.Lease, "a") == answers.NothingLeft(2, 1)
    assert client.shard.do(lease) == first, "the old answer, though the task is long committed"


def test_a_lease_that_would_wait_is_known_before_it_is_asked_for() -> None:
    client = Client()
    client.done(ops.Open, 1, 2, "bsp", ("a", "b"))
    assert client.shard.would_wait(ops.Lease("a", client="x", sequence=1)) is None
    assert client.shard.do(ops.Lease("a", client="x", sequence=1)) == answers.Leased(0, 1, 0)
    client.commit("s", task=ops.Task(1, 0, "a"))
    before = client.shard.digest()
    assert client.shard.would_wait(ops.Lease("a", client="x", sequence=2)) == answers.Wait(1, "bound", ("b",))
    assert client.shard.would_wait(ops.Lease("a", client="x", sequence=1)) is None, "it has its answer"
    assert client.shard.would_wait(ops.Lease("nobody", client="x", sequence=2)) is None
    assert client.shard.digest() == before
