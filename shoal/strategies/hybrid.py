"""One strategy within a team of workers, another between the teams.

There is no class for each pair. An outer strategy says what a team must be to it: `incremental` trains with whatever
inner strategy the team has; `allreduce` needs nothing but a group in two levels, which is hierarchical all-reduce;
`parameter-server` and `async` have teams add up their gradients, and speak with the leaders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shoal.comm.group import Group
from shoal.comm.hierarchical import HierarchicalGroup
from shoal.core.config import HybridSettings, ServerSettings
from shoal.core.consistency import parse
from shoal.core.cursor import GlobalBatch
from shoal.core.grains import Grain
from shoal.core.staleness import Aging
from shoal.core.state import ShardedState
from shoal.core.teams import Rule, teams
from shoal.core.world import World
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.base import Runtime, StepResult, Strategy, Sums, Work
from shoal.strategies.incremental import Incremental
from shoal.strategies.names import check_pair
from shoal.strategies.objective import Batch
from shoal.strategies.parameter_server import Asynchronous, ParameterServer
from shoal.strategies.program import Program
from shoal.strategies.team import find_team, group_of_leaders

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

    def aging(self, replica: Any) -> Aging | None:
        return self.whole.aging(replica)

    def known_limits(self, replica: Any) -> list[str]:
        return self.whole.known_limits(replica)

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


def compose(settings: HybridSettings, server: ServerSettings | None = None) -> Hybrid:
    """The hybrid that `settings` ask for; `server` says how far teams may be apart that have servers. Raises
    `ConfigError` for a pair that makes no sense."""
    check_pair(settings)
    return _OUTER[settings.outer](_INNER[settings.inner](), settings.team, server or ServerSettings())


def _incremental(inner: Strategy[Any], rule: Rule, server: ServerSettings) -> Hybrid:
    return Hybrid(Incremental(inner, rule))


def _parameter_server(inner: Strategy[Any], rule: Rule, server: ServerSettings) -> Hybrid:
    return Hybrid(ParameterServer(parse(server.consistency), rule))


def _asynchronous(inner: Strategy[Any], rule: Rule, server: ServerSettings) -> Hybrid:
    return Hybrid(Asynchronous(rule))


def _allreduce(inner: Strategy[Any], rule: Rule, server: ServerSettings) -> Hybrid:
    """Sums within teams, then between their leaders: the same strategy on a group in two levels."""
    return Hybrid(inner, lambda runtime: replace(runtime, group=in_two_levels(runtime, rule)))


_OUTER: dict[str, Callable[[Strategy[Any], Rule, ServerSettings], Hybrid]] = {
    "incremental": _incremental,
    "allreduce": _allreduce,
    "parameter-server": _parameter_server,
    "async": _asynchronous,
}


def in_two_levels(runtime: Runtime, rule: Rule) -> Group:
    """The group of the whole view, made of those of its teams and of their leaders. Collective."""
    if len(teams(runtime.view, rule)) in (1, runtime.view.size):
        return runtime.group  # one level is enough
    team = find_team(runtime, rule)
    me = runtime.view.members[runtime.world.rank]
    return HierarchicalGroup(team.all, me, team.group, group_of_leaders(runtime, team))
