"""One strategy within a team of workers, another between the teams.

There is no class for each pair. An outer strategy says what a team must be to it: `incremental` trains with whatever
inner strategy the team has; `allreduce` needs nothing but a group in two levels, which is hierarchical all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shoal.comm.group import Group
from shoal.comm.hierarchical import HierarchicalGroup
from shoal.comm.solo import SoloGroup
from shoal.core.config import HybridSettings
from shoal.core.cursor import GlobalBatch
from shoal.core.errors import ConfigError, nearest
from shoal.core.grains import Grain
from shoal.core.state import ShardedState
from shoal.core.teams import Part, Rule, leaders, teams
from shoal.core.world import World
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.base import Runtime, StepResult, Strategy, Sums, Work
from shoal.strategies.incremental import Incremental
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program

Arrange = Callable[[Runtime], Runtime]
_INNER: dict[str, Callable[[], Strategy[Any]]] = {"allreduce": AllReduce}


class Hybrid(Strategy[Any]):
    """`whole` is what the pair comes to; `arrange` makes the runtime that it needs."""

    name = "hybrid"

    def __init__(self, whole: Strategy[Any], arrange: Arrange = lambda runtime: runtime) -> None:
        self.whole, self._arrange = whole, arrange
        self.needs = whole.needs  # type: ignore[misc]  # those of the pair

    def bind(self, program: Program, runtime: Runtime) -> Any:
        return self.whole.bind(program, self._arrange(runtime))

    def reconfigure(self, replica: Any, program: Program, runtime: Runtime) -> Any:
        return self.whole.reconfigure(replica, program, self._arrange(runtime))

    def step(self, replica: Any, work: Work) -> StepResult:
        return self.whole.step(replica, work)

    def reach(self, replica: Any) -> int:
        return self.whole.reach(replica)

    def share(self, batch: GlobalBatch, world: World, weights: Sequence[float]) -> tuple[Grain, ...]:
        return self.whole.share(batch, world, weights)

    def evaluate(self, replica: Any, batch: Batch) -> Sums:
        return self.whole.evaluate(replica, batch)

    def state(self, replica: Any) -> ShardedState:
        return self.whole.state(replica)

    def live_state(self, replica: Any) -> ShardedState:
        return self.whole.live_state(replica)

    def load(self, replica: Any, state: ShardedState) -> None:
        self.whole.load(replica, state)

    def initial_learning_rates(self, replica: Any) -> tuple[float, ...]:
        return self.whole.initial_learning_rates(replica)

    def discard(self, replica: Any) -> None:
        self.whole.discard(replica)

    def close(self, replica: Any) -> None:
        self.whole.close(replica)


def compose(settings: HybridSettings) -> Hybrid:
    """The hybrid that `settings` ask for. Raises `ConfigError` for a pair that makes no sense."""
    if settings.inner not in _INNER:
        raise ConfigError(
            f"hybrid.inner={settings.inner!r} cannot train within a team: {nearest(settings.inner, list(_INNER))}"
        )
    if settings.outer not in _OUTER:
        raise ConfigError(f"hybrid.outer={settings.outer!r} cannot join teams: {nearest(settings.outer, list(_OUTER))}")
    return _OUTER[settings.outer](_INNER[settings.inner](), settings.team)


def _incremental(inner: Strategy[Any], rule: Rule) -> Hybrid:
    return Hybrid(Incremental(inner, rule))


def _allreduce(inner: Strategy[Any], rule: Rule) -> Hybrid:
    """Sums within teams, then between their leaders: the same strategy on a group in two levels."""
    return Hybrid(inner, lambda runtime: replace(runtime, group=in_two_levels(runtime, rule)))


_OUTER: dict[str, Callable[[Strategy[Any], Rule], Hybrid]] = {"incremental": _incremental, "allreduce": _allreduce}


def in_two_levels(runtime: Runtime, rule: Rule) -> Group:
    """The group of the whole view, made of those of its teams and of their leaders. Collective."""
    found = teams(runtime.view, rule)
    me = runtime.view.members[runtime.world.rank]
    at = next(number for number, team in enumerate(found) if me in team)
    if len(found) == 1 or len(found) == runtime.view.size:
        return runtime.group  # one level is enough
    assert runtime.subgroup is not None, "a run offers groups of some of its members"
    mine = found[at]
    inner = runtime.subgroup(Part(2 + at, mine)) if len(mine) > 1 else SoloGroup()
    outer = runtime.subgroup(Part(1, leaders(found))) if mine[0] == me else None
    return HierarchicalGroup(found, me, inner, outer)
