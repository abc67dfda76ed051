"""A group in two levels keeps what every group promises, whatever the teams are; only leaders use the network."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest
import torch
from comm_ranks import Failure, attempt, await_all, join, on_hosts, tell, view_of
from test_comm_contract import (
    NUMELS,
    collectives,
    digest,
    forgetful,
    odd_layouts,
    one_after_the_other,
    random_sums,
    reduce_nothing,
    reduce_steps,
)
from test_comm_faults import check_named, failure_of, interrupted, work_for_ever
from test_comm_recovery import drive, freeze_and_return, kill_all_but_one, outlive

from shoal.comm.control import ControlPage
from shoal.comm.group import BucketReducer, BucketSpec
from shoal.comm.hierarchical import HierarchicalGroup
from shoal.comm.hierarchical_reducer import HierarchicalReducer
from shoal.comm.peer_sockets import socket_inodes
from shoal.comm.select import choose_backend, make_group
from shoal.core.errors import ConfigError
from shoal.core.teams import Part
from shoal.core.world import Member, View
from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness

pytestmark = [pytest.mark.contract, pytest.mark.ranks]
LAYOUTS = ("01/23", "0/123", "012/3", "0/1/2/3", "03/12")
in_all_layouts = pytest.mark.parametrize("layout", LAYOUTS)
PROMPT_S = 20.0  # far below the deadline of a wait of 60 s


# --- the contract of a group


@in_all_layouts
def test_collectives_in_two_levels(ranks: RankHarness, layout: str) -> None:
    sizes = NUMELS if layout == LAYOUTS[0] else (0, 3, 5001)
    dtypes = ("float32", "int64", "bfloat16")
    assert ranks.run(4, collectives, f"hierarchical {layout}", dtypes, sizes, 100_000) == ["passed"] * 4


@in_all_layouts
def test_reducer_in_two_levels(ranks: RankHarness, layout: str) -> None:
    outcomes = ranks.run(4, reduce_steps, f"hierarchical {layout}", [0.5, 1.5, 2.5, 3.5], 3)
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_odd_layouts(ranks: RankHarness) -> None:
    assert ranks.run(3, odd_layouts, "hierarchical 02/1") == ["passed"] * 3


def test_facts_without_buckets(ranks: RankHarness) -> None:
    for rows in ranks.run(3, reduce_nothing, "hierarchical 02/1"):
        assert rows == [[[rank, step] for rank in range(3)] for step in range(50)]


def test_finish_names_buckets_that_were_never_ready(ranks: RankHarness) -> None:
    for message in ranks.run(3, forgetful, "hierarchical 02/1"):
        assert "[1, 2, 3, 4, 5]" in message


def test_groups_and_reducers_follow_each_other(ranks: RankHarness) -> None:
    assert len(set(ranks.run(3, one_after_the_other, "hierarchical 02/1"))) == 1


# --- the order of sums


def test_bits_are_the_same_on_all_ranks_and_in_every_run(ranks: RankHarness) -> None:
    backend = "hierarchical 03/1/2"  # three leaders: their order counts
    digests = {outcome for _ in range(2) for outcome in ranks.run(4, random_sums, backend, 7)}
    assert len(digests) == 1
    assert digests != set(ranks.run(4, random_sums, backend, 8))


def part_of_sum(rank: int) -> torch.Tensor:
    return torch.randn(10_007, generator=torch.Generator().manual_seed(rank))


def sum_of_random(session: Session, layout: str) -> str:
    group = join(session, f"hierarchical {layout}")
    reducer = group.reducer([BucketSpec(10_007, torch.float32)], 0)
    reducer.open(1.0)
    reducer.buffers[0].copy_(part_of_sum(group.rank))
    reducer.ready(0)
    reducer.finish(torch.zeros(0, dtype=torch.float64))
    tensor = part_of_sum(group.rank)
    group.all_reduce(tensor, "a sum")
    assert torch.equal(tensor / 4, reducer.buffers[0]), "both take the same order"
    group.close()
    return digest(tensor)


@pytest.mark.parametrize("layout", ["01/23", "03/12", "0/123"])
def test_sums_are_taken_by_teams(ranks: RankHarness, layout: str) -> None:
    of_teams = []
    for team in layout.split("/"):
        total = part_of_sum(int(team[0])).clone()
        for rank in team[1:]:
            total += part_of_sum(int(rank))
        of_teams.append(total)
    assert ranks.run(4, sum_of_random, layout) == [digest(of_teams[0] + of_teams[1])] * 4


# --- who uses the network


def count_sockets(session: Session) -> tuple[str, int]:
    before = socket_inodes()
    group = join(session, "hierarchical 013/2")
    group.barrier("all are there")
    count = len(socket_inodes() - before)
    group.barrier("all have counted")
    group.close()
    return group.backend, count


def test_only_leaders_have_sockets(ranks: RankHarness) -> None:
    outcomes = ranks.run(4, count_sockets)
    assert [backend for backend, _ in outcomes] == ["hierarchical"] * 4
    assert [count > 0 for _, count in outcomes] == [True, False, True, False]


def pass_on_early(session: Session) -> str:
    group = join(session, "hierarchical 01/23")
    assert isinstance(group, HierarchicalGroup)
    reducer = group.reducer([BucketSpec(1000, torch.float32)] * 3, 0)
    assert isinstance(reducer, HierarchicalReducer)
    reducer.open(1.0)
    reducer.ready(2)
    if group.outer is not None:
        until = time.monotonic() + 60
        while not reducer._inner.reduced(2):  # the other one does its share in the end of its step
            assert time.monotonic() < until
            time.sleep(0.001)
    for bucket in (0, 1):
        reducer.buffers[bucket].fill_(1.0)
        reducer.ready(bucket)
        assert 2 not in reducer._to_pass, "it is on its way, while the rest is being computed"
    reducer.finish(torch.zeros(0, dtype=torch.float64))
    assert [buffer.unique().tolist() for buffer in reducer.buffers] == [[1.0], [1.0], [0.0]]
    group.close()
    return "passed"


def test_a_bucket_goes_between_teams_while_later_ones_are_computed(ranks: RankHarness) -> None:
    assert ranks.run(4, pass_on_early) == ["passed"] * 4


# --- faults


@pytest.mark.parametrize("victim", [1, 2], ids=["a member", "a leader"])
@pytest.mark.parametrize("operation", ["reducer", "all_reduce", "gather_bytes"])
def test_survivors_of_a_killed_rank_get_peer_lost(ranks: RankHarness, operation: str, victim: int) -> None:
    with ranks.start(4, attempt, work_for_ever, "hierarchical 01/23", operation, 60.0, None) as run:
        await_all(run.control, 4)
        run.signal(victim, signal.SIGKILL)
        run.wait_for(victim)
        run.control.break_view(1)
        begun = time.monotonic()
        failures = [failure_of(run.wait_for(rank)) for rank in range(4) if rank != victim]
        assert time.monotonic() - begun < PROMPT_S
    for failure in failures:
        assert failure.kind == "PeerLost", failure.account


def begin_together(session: Session, operation: str) -> None:
    tell(session)
    await_all(session.control, 4)
    work_for_ever(session, "hierarchical 01/23", operation, 3.0, 3)


@pytest.mark.parametrize("operation", ["reducer", "broadcast"])
def test_a_rank_that_never_comes_is_named(ranks: RankHarness, operation: str) -> None:
    with ranks.start(4, attempt, begin_together, operation) as run:
        failures = [failure_of(run.wait_for(rank)) for rank in range(3)]
    # its own team sees it; the other leader sees that this team has not come, and who waits for that leader no more
    check_named(failures, [(2, 3), (0, 2, 3), (3,)])


def freeze_in_the_team(session: Session, frozen: int) -> Failure:
    group = join(session, "hierarchical 01/23", 60.0)
    group.barrier("the start")
    tell(session)
    if group.rank == frozen:
        os.kill(os.getpid(), signal.SIGSTOP)
    failure = attempt(session, lambda _: group.all_reduce(torch.ones(1000), "a sum"))
    group.close()
    assert isinstance(failure, Failure)
    return failure


@pytest.mark.parametrize("frozen", [2, 3], ids=["a leader", "a member"])
def test_a_broken_view_frees_those_who_wait_for_a_frozen_rank(ranks: RankHarness, frozen: int) -> None:
    with ranks.start(4, freeze_in_the_team, frozen) as run:
        await_all(run.control, 4)
        run.control.break_view(1)
        begun = time.monotonic()
        failures = [failure_of(run.wait_for(rank)) for rank in range(4) if rank != frozen]
        assert time.monotonic() - begun < PROMPT_S
    for failure in failures:
        assert failure.kind == "PeerLost", failure.account


def test_another_thread_frees_a_leader_that_waits_inside_gloo(ranks: RankHarness) -> None:
    with ranks.start(2, interrupted, "hierarchical 0/1") as run:
        failure = failure_of(run.wait_for(0, 30.0))
    assert failure.kind == "PeerLost", failure.account


def test_survivors_of_killed_members_go_on_in_the_next_view(ranks: RankHarness) -> None:
    with ranks.start(5, outlive, "hierarchical 013/24") as run:
        kill_all_but_one(run, 5)


def test_a_frozen_member_is_left_behind_and_comes_back_and_nothing_leaks(ranks: RankHarness) -> None:
    rounds = 4
    with ranks.start(3, freeze_and_return, "hierarchical 02/1", rounds) as run:
        drive(run, 3, rounds)
        results = run.results(120.0)
    for early, late in results:
        assert late[0] <= early[0], "threads"
        assert late[1] <= early[1], "descriptors"
        assert late[2] <= early[2], "maps"


# --- the choice


@pytest.mark.unit
def test_it_is_chosen_where_a_host_of_several_has_several_workers() -> None:
    name, reason = choose_backend("auto", "cpu", ("red", "blue"), neighbours=True)
    assert name == "hierarchical"
    assert "red, blue" in reason
    assert choose_backend("auto", "cpu", ("red", "blue"))[0] == "gloo"
    assert choose_backend("auto", "cpu", (), neighbours=True)[0] == "shm"
    with pytest.raises(ConfigError, match=r"comm\.backend=hierarchical cannot be used.*CUDA.*auto"):
        choose_backend("hierarchical", "cuda")


@pytest.mark.unit
def test_on_one_host_it_is_shared_memory() -> None:
    control = ControlPage()
    members = tuple(Member("worker", rank, "host", 1, str(rank), "agent", rank) for rank in range(2))
    group = make_group(View(1, members), "1", control, "hierarchical", pytest.fail, 1.0)
    assert (group.backend, group.rank, group.size) == ("shm", 1, 2)
    group.close()
    control.close()


def chosen(session: Session) -> list[str]:
    """What views and parts of them get, one after the other."""
    backends = []
    for number, (layout, backend, in_part) in enumerate(
        [("0/12", "auto", False), ("0/1/2", "hierarchical", False), ("0/12", "gloo", False), ("0/12", "auto", True)], 1
    ):
        view = on_hosts(view_of(session, number), layout)
        store = partial(session.attendance.store, view, 30.0)
        part = Part(7, view.members) if in_part else None
        group = make_group(view, session.attendance.key, session.control, backend, store, 30.0, part=part)
        tensor = torch.ones(10)
        group.all_reduce(tensor, "a sum")
        assert tensor.eq(3.0).all()
        group.close()
        backends.append(group.backend)
    return backends


def test_what_a_view_over_hosts_gets(ranks: RankHarness) -> None:
    assert ranks.run(3, chosen) == [["hierarchical", "gloo", "gloo", "hierarchical"]] * 3


# --- the checks see what they should


def reduce_with_a_mistake(session: Session, mistake: str) -> object:
    if mistake == "a bucket of a team is lost":
        HierarchicalReducer._pass = _lose  # type: ignore[method-assign]
    else:
        HierarchicalReducer._exchange = _keep_to_itself  # type: ignore[method-assign]
    return attempt(session, reduce_steps, "hierarchical 02/1", [0.5, 1.5, 2.5], 1)


def _lose(self: HierarchicalReducer, outer: BucketReducer, bucket: int) -> None:
    self._to_pass.remove(bucket)
    if self._group.team == 0:
        outer.buffers[bucket].zero_()
    outer.ready(bucket)


def _keep_to_itself(self: HierarchicalReducer, outer: BucketReducer, of_team: torch.Tensor, rows: torch.Tensor) -> None:
    for bucket in self._to_pass.copy():
        self._pass(outer, bucket)
    outer.finish(torch.zeros(self._widest * len(self._row), dtype=torch.float64))
    rows[: len(of_team)] = of_team


@pytest.mark.mutation
@pytest.mark.parametrize("mistake", ["a bucket of a team is lost", "a leader keeps the sum of its team"])
def test_a_mistake_between_the_levels_is_seen_by_all(ranks: RankHarness, mistake: str) -> None:
    for outcome in ranks.run(3, reduce_with_a_mistake, mistake):
        assert isinstance(outcome, Failure)
        assert outcome.kind == "AssertionError", outcome.account
