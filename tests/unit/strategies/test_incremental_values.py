"""The pure parts of incremental training: rounds, their pace, the outer optimizer, and who inherits local work."""

from __future__ import annotations

import heapq
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.comm.solo import SoloGroup
from shoal.core.config import IncrementalSettings
from shoal.core.cursor import Batches, Cursor
from shoal.strategies.leases import Leases
from shoal.strategies.outer import Outer
from shoal.strategies.pacing import Pace, first_pace, next_pace
from shoal.strategies.progress import heirs
from shoal.strategies.rounds import left_over, plan_round, tasks, units

pytestmark = pytest.mark.unit


@given(
    samples=st.integers(1, 300),
    batch=st.integers(1, 50),
    grain=st.integers(1, 20),
    count=st.integers(1, 12),
    trainers=st.integers(1, 6),
    rho=st.floats(0.01, 1.0),
)
def test_a_round_has_every_sample_once(
    samples: int, batch: int, grain: int, count: int, trainers: int, rho: float
) -> None:
    batches, at, stretch = Batches(samples, batch, grain), Cursor(), []
    for _ in range(min(count, batches.per_epoch)):
        stretch.append(batches.at(at))
        at = batches.after(at)
    plan = plan_round(len(stretch), trainers, rho)
    steps = units(plan, stretch)
    cut = tasks(plan, range(len(steps)))
    assert list(itertools.chain.from_iterable(cut)) == list(range(len(steps)))
    assert max(len(task) for task in cut) <= max(1, rho * len(stretch))
    positions = [p for step in steps for grain in step.grains for p in range(grain.start, grain.stop)]
    assert positions == list(range(stretch[0].start, stretch[-1].stop))
    assert max(sum(step.at == batch for step in steps) for batch in range(len(stretch))) <= trainers


def test_what_nobody_has_done_is_left_over_and_nothing_is_done_twice() -> None:
    assert left_over(5, [[3], [0, 4]]) == [1, 2]
    assert left_over(2, [[1, 0], []]) == []
    for wrong in ([[1], [1]], [[1, 1]], [[5]]):
        with pytest.raises(AssertionError, match="not its own"):
            left_over(5, wrong)


def test_the_pace_follows_what_sending_costs() -> None:
    assert next_pace(7, first_pace(7), 7, 1.0, 100.0).steps == 7
    assert [next_pace("growing", Pace(steps), steps, 1.0, 1.0).steps for steps in (1, 2, 512)] == [2, 4, 512]
    pace = first_pace("auto")
    # a step takes 10 ms, an average 0.9 s: after 810 steps sending would be a tenth; 512 is the most
    for _ in range(10):
        pace = next_pace("auto", pace, pace.steps, 0.01 * pace.steps, 0.9)
    assert pace.steps == 512
    for _ in range(10):
        pace = next_pace("auto", pace, pace.steps, 0.01 * pace.steps, 0.02)
    assert pace.steps == 18
    assert pace.sending == pytest.approx(0.1)
    assert next_pace("auto", Pace(4), 4, 0.04, 0.0).steps == 1
    assert next_pace("auto", Pace(4), 4, 0.0, 1.0).steps == 4


@pytest.mark.parametrize("kind", ["plain", "momentum", "nesterov"])
def test_outer_optimizers_are_those_of_torch(kind: str) -> None:
    """The negative of a difference is the gradient of the outer optimizer."""
    settings = IncrementalSettings.model_validate({"outer": kind, "outer_lr": 0.3, "outer_momentum": 0.8})
    weights, common = torch.zeros(5, dtype=torch.float64), torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    outer = Outer(settings, weights)
    momentum = 0.0 if kind == "plain" else 0.8
    optimizer = torch.optim.SGD([common], lr=0.3, momentum=momentum, nesterov=kind == "nesterov")
    for _ in range(4):
        difference = torch.randn(5, dtype=torch.float64)
        common.grad = -difference.clone()
        optimizer.step()
        weights += outer.step(difference)
    assert torch.allclose(weights, common.detach(), rtol=1e-12)


@st.composite
def views(draw: st.DrawFn) -> tuple[list[list[int]], list[str], list[int]]:
    size = draw(st.integers(1, 7))
    ranks, teams = list(range(size)), []
    while ranks:
        count = draw(st.integers(1, len(ranks)))
        teams.append(sorted(ranks[:count]))
        ranks = ranks[count:]
    owners = [draw(st.sampled_from(["", "a", "b", "c"])) for _ in range(size)]
    counts = [draw(st.integers(1, 4)) if owner else 0 for owner in owners]
    return teams, owners, counts


@given(views())
def test_local_work_goes_to_one_team_only_and_from_whoever_is_furthest(
    view: tuple[list[list[int]], list[str], list[int]],
) -> None:
    teams, owners, counts = view
    found = heirs(teams, owners, counts)
    taken = [owners[heir] for heir in found if heir is not None]
    assert len(taken) == len(set(taken)), "two teams go on with the same work"
    for team, heir in zip(teams, found, strict=True):
        if heir is not None:
            assert heir in team
            assert counts[heir] == max(c for o, c in zip(owners, counts, strict=True) if o == owners[heir])


def test_alone_in_a_team_nobody_loses_local_work() -> None:
    assert heirs([[0], [1], [2]], ["a", "b", "c"], [3, 0, 2]) == [0, None, 2]


def test_leases_without_others_go_through_all_tasks() -> None:
    assert list(Leases(None, 0, 1, SoloGroup()).take("key", 4)) == [0, 1, 2, 3]
    assert list(Leases(None, 0, 1, SoloGroup()).take("key", 0)) == []


def test_leases_through_a_store_give_every_task_once() -> None:
    store = torch.distributed.HashStore()
    takers = [Leases(lambda: store, at, 3, SoloGroup()).take("key", 10) for at in range(3)]
    taken: list[int] = []
    while takers:
        for taker in list(takers):
            number = next(taker, None)
            if number is None:
                takers.remove(taker)
            else:
                taken.append(number)
    assert sorted(taken) == list(range(10))


def round_of(speeds: list[float], batches: int, rho: float) -> tuple[list[int], list[float]]:
    """A round of trainers with these units a second, by a clock of its own: how many units each has done, and when it
    found nothing left to lease."""
    cut = tasks(plan_round(batches, len(speeds), rho), range(batches * len(speeds)))
    store = torch.distributed.HashStore()
    takers = [Leases(lambda: store, at, len(speeds), SoloGroup()).take("key", len(cut)) for at in range(len(speeds))]
    done, ended = [0] * len(speeds), [0.0] * len(speeds)
    free = [(0.0, at) for at in range(len(speeds))]
    while free:
        now_s, at = heapq.heappop(free)
        if (number := next(takers[at], None)) is None:
            ended[at] = now_s
            continue
        done[at] += len(cut[number])
        heapq.heappush(free, (now_s + len(cut[number]) / speeds[at], at))
    return done, ended


@pytest.mark.parametrize("slow", [1 / 2, 1 / 4, 1 / 10])
@pytest.mark.parametrize("rho", [0.02, 0.1])
def test_a_slow_trainer_takes_fewer_tasks(slow: float, rho: float) -> None:
    """As many fewer as it is slower, but for a task; so all end within the time that it takes for one."""
    done, ended = round_of([1.0, slow, 1.0], 100, rho)
    assert sum(done) == 300
    task = max(1, rho * 100)
    fair = 300 * slow / (2 + slow)
    assert done[1] == pytest.approx(fair, abs=2 * task)
    assert max(ended) - min(ended) <= task / slow


def test_the_finer_the_tasks_the_less_is_waited_for() -> None:
    waited = []
    for rho in (0.5, 0.25, 0.05, 0.01):
        _, ended = round_of([1.0, 0.25], 100, rho)
        waited.append(max(ended) - min(ended))
    assert waited == sorted(waited, reverse=True)
    assert waited[0] > 50 * waited[-1]


class Follower(SoloGroup):
    """The second of two members, who hears what the first has said."""

    rank, size = 1, 2

    def __init__(self, said: list[bytes]) -> None:
        self._said = iter(said)

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        assert payload == b"", "only the leader leases"
        return [next(self._said), payload]


class Leader(SoloGroup):
    rank, size = 0, 2

    def __init__(self) -> None:
        self.said: list[bytes] = []

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        self.said.append(payload)
        return [payload, b""]


def test_followers_take_what_their_leader_has_leased() -> None:
    store, leader = torch.distributed.HashStore(), Leader()
    leased = list(Leases(lambda: store, 1, 2, leader).take("key", 5))
    assert list(Leases(lambda: store, 1, 2, Follower(leader.said)).take("key", 5)) == leased == [1, 2, 3, 4]
