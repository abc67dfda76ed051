"""Every wait of a group ends: a lost peer and a missing one are told apart, and the missing one is named."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from comm_ranks import BACKENDS, Failure, attempt, await_all, join, tell

from shoal.comm.group import BucketSpec, Group
from shoal.comm.select import make_group
from shoal.core.world import View
from shoal.launch.session import Session
from shoal.testing.ranks import Rank, RankHarness

PROMPT_S = 40.0  # below the timeout of 60 s, far above what a loaded machine needs
pytestmark = [pytest.mark.contract, pytest.mark.ranks]
on_all = pytest.mark.parametrize("backend", BACKENDS)
in_all = pytest.mark.parametrize("operation", ["reducer", "all_reduce", "broadcast", "gather_bytes", "barrier"])


def work_for_ever(session: Session, backend: str, operation: str, timeout_s: float, absent: int | None) -> None:
    """Works until something ends it; rank `absent` makes the group and then never comes."""
    group = join(session, backend, timeout_s)
    tensor = torch.ones(300_000)
    reducer = group.reducer([BucketSpec(100_000, torch.float32), BucketSpec(10, torch.float32)], 1)
    group.barrier("the start")
    tell(session)
    if group.rank == absent:
        signal.pause()
    while True:
        if operation == "all_reduce":
            group.all_reduce(tensor.fill_(1), "a sum")
        elif operation == "broadcast":
            group.broadcast(tensor, 1, "a copy")
            group.broadcast(tensor, 0, "a copy")
        elif operation == "gather_bytes":
            group.gather_bytes(b"x" * 1000, "payloads")
        elif operation == "barrier":
            group.barrier("a barrier")
        else:
            reducer.open(1.0)
            reducer.ready(1)
            reducer.ready(0)
            reducer.finish(torch.zeros(1, dtype=torch.float64))


def failure_of(rank: Rank) -> Failure:
    """How a rank that has ended by itself failed."""
    assert rank.code == 0, rank.output()
    outcome = rank.outcome()
    assert outcome is not None
    assert isinstance(outcome[1], Failure), outcome
    return outcome[1]


@on_all
@in_all
def test_survivors_of_a_killed_rank_get_peer_lost(ranks: RankHarness, backend: str, operation: str) -> None:
    with ranks.start(3, attempt, work_for_ever, backend, operation, 60.0, None) as run:
        await_all(run.control, 3)
        run.signal(1, signal.SIGKILL)
        run.wait_for(1)
        run.control.abort()
        begun = time.monotonic()
        failures = [failure_of(run.wait_for(rank)) for rank in (0, 2)]
        assert time.monotonic() - begun < PROMPT_S
    for failure in failures:
        assert failure.kind == "PeerLost", failure.account


@on_all
@in_all
def test_a_rank_that_never_comes_is_named(ranks: RankHarness, backend: str, operation: str) -> None:
    with ranks.start(3, attempt, work_for_ever, backend, operation, 2.0, 1) as run:
        failures = [failure_of(run.wait_for(rank)) for rank in (0, 2)]
    check_named(failures, [(1,), (1,)])


def check_named(failures: list[Failure], missing: list[tuple[int, ...]]) -> None:
    """Whoever comes to its deadline first names the missing; it then leaves, by which another may lose it as a peer."""
    assert "CollectiveTimeout" in [failure.kind for failure in failures], failures[0].account
    for failure, names in zip(failures, missing, strict=True):
        expected = {"CollectiveTimeout": names, "PeerLost": ()}
        assert failure.missing == expected[failure.kind], failure.account


def work_and_close(session: Session, backend: str) -> Failure:
    """As a worker does: after the failure it closes what it has and leaves."""
    group = join(session, backend, 60.0)
    group.barrier("the start")
    tell(session)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    failure = attempt(session, lambda _: group.all_reduce(torch.ones(1000), "a sum"))
    group.close()
    assert isinstance(failure, Failure)
    return failure


@on_all
def test_an_aborted_run_frees_those_who_wait_for_a_frozen_rank(ranks: RankHarness, backend: str) -> None:
    with ranks.start(2, work_and_close, backend) as run:
        await_all(run.control, 2)
        run.control.abort()
        begun = time.monotonic()
        failure = failure_of(run.wait_for(0))
        assert time.monotonic() - begun < PROMPT_S
        assert failure.kind == "PeerLost", failure.account


def meet_alone(session: Session, backend: str) -> None:
    if session.world.rank == 1:
        signal.pause()
    join(session, backend, 0.5).barrier("the start")


@on_all
def test_a_rank_that_does_not_even_make_the_group_is_named(ranks: RankHarness, backend: str) -> None:
    with ranks.start(2, attempt, meet_alone, backend) as run:
        failure = failure_of(run.wait_for(0))
    assert failure.kind == {"shm": "CollectiveTimeout", "gloo": "PeerLost"}[backend], failure.account
    assert "worker 1" in failure.account


def wait_alone(session: Session, backend: str) -> bool:
    group = join(session, backend, 60.0)
    tell(session)
    if group.rank == 1:
        signal.pause()
    attempt(session, lambda _: group.barrier("a barrier"))
    return session.control.reading(session.world.seat).waiting


@on_all
def test_the_seat_of_who_waits_says_so(ranks: RankHarness, backend: str) -> None:
    with ranks.start(2, wait_alone, backend) as run:
        await_all(run.control, 2)
        until = time.monotonic() + 30
        while not run.control.reading(0).waiting:
            assert time.monotonic() < until
            time.sleep(0.002)
        assert not run.control.reading(1).waiting
        run.control.break_view(1)
        assert run.wait_for(0).outcome() == (True, False), run.describe()


def interrupted(session: Session, backend: str) -> Failure:
    group = join(session, backend, 60.0)
    tell(session)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    interrupter = threading.Timer(0.2, group.interrupt)
    interrupter.start()
    failure = attempt(session, lambda _: group.all_reduce(torch.ones(1000), "a sum"))
    interrupter.join()
    group.close()
    group.interrupt()  # at any time
    assert isinstance(failure, Failure)
    return failure


def test_another_thread_frees_who_waits_inside_gloo(ranks: RankHarness) -> None:
    with ranks.start(2, interrupted, "gloo") as run:
        failure = failure_of(run.wait_for(0, 30.0))
    assert failure.kind == "PeerLost", failure.account


def apart(session: Session, timeout_s: float) -> Group:
    """As if each rank were on a host of its own."""
    view = session.attendance.enter(0)
    members = [replace(member, agent=f"agent-{member.rank}", address="127.0.0.1") for member in view.members]
    view = View(1, tuple(members))
    store = session.attendance.store(view, timeout_s)
    return make_group(view, session.attendance.key, session.control, "auto", lambda: store, timeout_s)


def work_apart(session: Session, timeout_s: float) -> str:
    group = apart(session, timeout_s)
    tensor = torch.full((1000,), float(group.rank))
    group.all_reduce(tensor, "a sum")
    assert tensor.eq(3.0).all()
    tell(session)
    if group.rank == 1:
        signal.pause()
    group.barrier("a barrier")
    return group.backend


def test_hosts_are_connected_by_gloo_and_the_missing_ones_are_named(ranks: RankHarness) -> None:
    with ranks.start(3, attempt, work_apart, 2.0) as run:
        await_all(run.control, 3)
        failures = [failure_of(run.wait_for(rank)) for rank in (0, 2)]
    # of those on other hosts nobody can see which one did not come
    check_named(failures, [(1, 2), (0, 1)])
