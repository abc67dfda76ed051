"""Parts of a view as groups of their own: the same promises, several at a time, and all end with the view."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from itertools import pairwise

import pytest
import torch
from comm_ranks import BACKENDS, Failure, attempt, await_all, join, tell, view_of
from test_comm_contract import NUMELS, collectives, one_after_the_other, reduce_steps
from test_comm_faults import check_named, failure_of

from shoal.comm.control import ControlPage
from shoal.comm.group import BucketSpec, Group
from shoal.comm.select import forget_older, make_group
from shoal.comm.shm_segment import SLICE_BYTES, WINDOW_BYTES, Window
from shoal.core.errors import ShoalError
from shoal.core.teams import Part, leaders, teams
from shoal.core.world import Member, View
from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness

on_all = pytest.mark.parametrize("backend", BACKENDS)
pytestmark = [pytest.mark.contract, pytest.mark.ranks]
TOGETHER_S = 3.0  # the deadline of those that begin at the same moment


@pytest.mark.unit
def test_window_slices_of_views_and_parts_are_apart() -> None:
    control = ControlPage()
    starts = [Window(control.fd, view, part)._next for view in (0, 1, 2) for part in (0, 1, 2, 255)]
    assert starts == sorted(set(starts))
    assert min(later - sooner for sooner, later in pairwise(starts)) >= SLICE_BYTES
    assert starts[0] >= WINDOW_BYTES
    with pytest.raises(ShoalError, match="part 256 of view 1 has no place in shared memory: 255"):
        Window(control.fd, 1, 256)
    control.close()


# --- the contract of a group, in two parts at the same time


@on_all
def test_collectives_in_parts(ranks: RankHarness, backend: str) -> None:
    assert ranks.run(5, collectives, f"{backend} 03/124", ("float32", "int64"), NUMELS, 100_000) == ["passed"] * 5


@on_all
def test_reducer_in_parts(ranks: RankHarness, backend: str) -> None:
    outcomes = ranks.run(4, reduce_steps, f"{backend} 02/13", [0.5, 1.5], 3)
    assert all(outcome == outcomes[0] for outcome in outcomes)


@on_all
def test_parts_of_views_follow_each_other(ranks: RankHarness, backend: str) -> None:
    assert len(set(ranks.run(4, one_after_the_other, f"{backend} 02/13"))) == 1


# --- several groups of a member


def all_levels(session: Session, backend: str, timeout_s: float) -> tuple[Group, Group, Group | None]:
    """The group of all, that of this member's team of two, and that of the leaders for those that lead."""
    view, key = view_of(session), session.attendance.key
    store = partial(session.attendance.store, view, timeout_s)
    make = partial(make_group, view, key, session.control, backend, store, timeout_s)
    found, me = teams(view, 2), view.members[session.world.rank]
    at = next(number for number, team in enumerate(found) if me in team)
    whole, inner = make(), make(part=Part(2 + at, found[at]))
    outer = make(part=Part(1, leaders(found))) if me == found[at][0] else None
    return whole, inner, outer


def interleave(session: Session, backend: str) -> str:
    whole, inner, outer = all_levels(session, backend, 30.0)
    rank = session.world.rank
    team = [rank - rank % 2, rank - rank % 2 + 1]
    buckets = [BucketSpec(5000, torch.float32)]
    reducers = {group: group.reducer(buckets, 1) for group in (whole, inner, outer) if group is not None}
    members = {whole: range(4), inner: team, **({outer: [0, 2]} if outer is not None else {})}
    for turn in range(20):
        for group, among in members.items():
            tensor = torch.full((7000,), float(10 * rank + turn))
            group.all_reduce(tensor, "a sum")
            assert tensor.eq(sum(10 * other + turn for other in among)).all()
            reducer = reducers[group]
            reducer.open(1.0)
            reducer.buffers[0].fill_(rank + turn)
            reducer.ready(0)
            facts = reducer.finish(torch.tensor([rank], dtype=torch.float64))
            assert facts.flatten().tolist() == list(among)
            assert torch.allclose(reducer.buffers[0], torch.tensor(turn + sum(among) / len(among)))
            word = bytes([rank]) * (turn + rank)
            assert group.gather_bytes(word, "words") == [bytes([other]) * (turn + other) for other in among]
    for group in members:
        group.close()
    return "passed"


@on_all
def test_groups_of_a_view_are_used_by_turns(ranks: RankHarness, backend: str) -> None:
    assert ranks.run(4, interleave, backend) == ["passed"] * 4


# --- who is missing is named by its rank in the view


def miss_one(session: Session, backend: str, where: str) -> None:
    """The last member makes its groups and never comes; its neighbour waits in the team, or all wait for it."""
    tell(session)
    await_all(session.control, 4)
    whole, inner, outer = all_levels(session, backend, TOGETHER_S)
    for group in (whole, inner, outer):
        if group is not None:
            group.barrier("the start")
    for _ in range(5 * (session.world.rank < 2)):  # one team does more than the other
        inner.barrier("among the first two")
    if session.world.rank == 3:
        signal.pause()
    if where == "whole":
        whole.barrier("all together")
    elif session.world.rank == 2:
        inner.all_reduce(torch.ones(1000), "a sum")


@pytest.mark.parametrize(("backend", "where"), [("shm", "team"), ("gloo", "team"), ("gloo", "whole")])
def test_a_missing_member_is_named_by_its_rank_in_the_view(ranks: RankHarness, backend: str, where: str) -> None:
    waiting = (0, 1, 2) if where == "whole" else (2,)
    with ranks.start(4, attempt, miss_one, backend, where) as run:
        failures = [failure_of(run.wait_for(rank)) for rank in waiting]
    check_named(failures, [(3,)] * len(waiting))


def connect_alone(session: Session) -> None:
    if session.world.rank != 3:
        join(session, "gloo 02/13", 0.5 if session.world.rank == 1 else 60.0).close()


def test_a_member_that_does_not_connect_is_named_by_its_rank_in_the_view(ranks: RankHarness) -> None:
    with ranks.start(4, attempt, connect_alone) as run:
        failure = failure_of(run.wait_for(1))
        assert failure.kind == "PeerLost"
        assert "could not connect with worker 3 on" in failure.account
        assert run.wait_for(0).outcome() == (True, None), "the other part is not concerned"


# --- the end of a view is the end of all its groups


def wait_in_parts(session: Session, backend: str) -> Failure:
    """Each first member of a part waits for its second: one is killed, the other takes its time."""
    group = join(session, f"{backend} 02/13", 60.0)
    group.barrier("the start")
    tell(session)
    if session.world.rank == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    if session.world.rank == 2:
        signal.pause()
    failure = attempt(session, lambda _: group.all_reduce(torch.ones(1000), "a sum"))
    group.close()
    assert isinstance(failure, Failure)
    return failure


@on_all
def test_a_broken_view_frees_the_waits_of_all_its_parts(ranks: RankHarness, backend: str) -> None:
    with ranks.start(4, wait_in_parts, backend) as run:
        await_all(run.control, 4)
        run.signal(2, signal.SIGKILL)
        run.wait_for(2)
        run.control.break_view(1)
        begun = time.monotonic()
        for rank in (0, 1):
            failure = failure_of(run.wait_for(rank))
            assert failure.kind == "PeerLost", failure.account
        assert time.monotonic() - begun < 20, "far below the deadline of the wait"


# --- memory, and what is refused


def two_on_a_host() -> tuple[Member, ...]:
    return tuple(Member("worker", rank, "host", 1, str(rank), "agent", rank) for rank in range(2))


def no_store() -> None:
    raise AssertionError("no store is needed")


@pytest.mark.unit
def test_the_memory_of_parts_is_given_back_with_their_view() -> None:
    control, members = ControlPage(), two_on_a_host()
    used = []
    for number in range(1, 11):
        view = View(number, members)
        made = [make_group(view, "0", control, "shm", no_store, 1.0, part=Part(at, members)) for at in (0, 1, 255)]
        forget_older(view, members[0], control)
        for group in made:
            reducer = group.reducer([BucketSpec(1_000_000, torch.float32)], 0)
            reducer.open(1.0)  # and no end of the step: nobody gives the memory back by itself
            reducer.buffers[0].fill_(1.0)
        used.append(os.fstat(control.fd).st_blocks * 512)
        for group in made:
            group.close()
        del made, group, reducer
    assert 12_000_000 <= used[0] < 16_000_000
    assert max(used) <= used[0] + (1 << 20)
    forget_older(View(11, members), members[0], control)
    assert os.fstat(control.fd).st_blocks * 512 < 1 << 20
    control.close()


@pytest.mark.unit
def test_a_part_has_one_group_and_none_for_strangers() -> None:
    control, members = ControlPage(), two_on_a_host()
    view = View(3, members)
    part = Part(1, members)
    group = make_group(view, "0", control, "shm", no_store, 1.0, part=part)
    with pytest.raises(ShoalError, match="the process 1 is no member of part 2 of view 3"):
        make_group(view, "1", control, "shm", no_store, 1.0, part=Part(2, members[:1]))
    group.close()
    with pytest.raises(ShoalError, match="part 1 of view 3 had a group before"):
        make_group(view, "0", control, "shm", no_store, 1.0, part=part)
    control.close()
