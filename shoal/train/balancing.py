"""The shares of a run's workers: as the user states them, else following measured speed, else equal.

With ``balance=auto`` the workers tell each other once a view what they know, and from then on each of them decides for
itself, at the end of every step, from what all have been told with that step. So a change needs no message: it holds
from the next step on, for everyone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from shoal.core.config import Config
from shoal.core.cursor import Batches, GlobalBatch
from shoal.core.errors import ShoalError
from shoal.core.events import Balanced
from shoal.elastic.allotment import allot
from shoal.elastic.balance import Balancer, Measured, starting_costs
from shoal.elastic.capacity import Capacity, guess_speeds, measure
from shoal.strategies.base import Span, StepResult
from shoal.train.place import Place

_COMPUTING = ("data", "forward", "backward")  # what a worker spends without waiting for another


class Balancing:
    """One a run. `weights` are those of the current view, by rank, and change with `observe`."""

    def __init__(self, config: Config, batches: Batches, leases: bool) -> None:
        self._config, self._batches = config, batches
        self._wanted = config.balance == "auto" and not leases  # who leases takes as much as it can do
        self._grains = -(-batches.global_batch // batches.grain)
        self._balancer: Balancer | None = None
        self._keys: tuple[str, ...] = ()
        self._known: dict[str, float] = {}  # seconds a grain by the key of a member, of whom was there
        self._fixed = 0.0
        self._news = ""
        self.weights: tuple[float, ...] = ()

    def cut(self, batches: Batches) -> None:
        """An epoch begins that has another number of samples."""
        self._batches = batches

    def meet(self, place: Place) -> None:
        """Settle the shares for a new view. Collective where shares follow speed: survivors keep what was measured of
        them, of newcomers it is guessed."""
        self._remember()
        self._balancer, self._news = None, ""
        stated = self._config.weights
        self.weights = (1.0,) * place.view.size
        if stated is not None and len(stated) == place.view.size:
            self.weights = stated
        elif self._wanted and place.view.size > 1:
            self._exchange(place)
            if self.weights != allot(self._grains, (1.0,) * place.view.size):
                self._news = "as measured before" if self._known else "a guess from cores and free CPU"

    def _exchange(self, place: Place) -> None:
        mine = {
            "capacity": measure().to_json(),
            "known": self._known,
            "fixed": self._fixed,
            "device": place.world.device,
        }
        words = place.group.gather_bytes(json.dumps(mine).encode(), "comparing how quick we are")
        everyone: list[dict[str, Any]] = [json.loads(word) for word in words]
        # two may be a step apart: all must go by the word of one
        one: Mapping[str, Any] = next((each for each in everyone if each["known"]), everyone[0])
        members = place.view.members
        self._keys = tuple(member.key for member in members)
        self._known = {key: float(cost) for key, cost in one["known"].items() if key in self._keys}
        self._fixed = float(one["fixed"])
        guesses = (1.0,) * len(members)
        if all(each["device"] == "cpu" for each in everyone):
            capacities = [Capacity.from_json(each["capacity"]) for each in everyone]
            hosts = [f"{member.host} {member.agent}" for member in members]
            at_work = [key in self._known for key in self._keys]
            guesses = guess_speeds(capacities, hosts, self._config.threads, at_work)
        costs = starting_costs(self._keys, guesses, self._known)
        self._balancer = Balancer(self._grains, costs, self._fixed)
        self.weights = tuple(map(float, self._balancer.shares))

    def _remember(self) -> None:
        """Keep what was measured in the view that is left."""
        if self._balancer is not None and self._balancer.measured:
            self._known = dict(zip(self._keys, self._balancer.costs(), strict=True))
            self._fixed = self._balancer.fixed

    def news(self, step: int) -> Balanced | None:
        """What is to be told, once, of the shares with which a view begins at `step`; None where they are plain."""
        reason, self._news = self._news, ""
        return Balanced(step, self.weights, reason) if reason else None

    def observe(self, batch: GlobalBatch, result: StepResult) -> Balanced | None:
        """A step is committed. Returns what changes with the next one, if anything does."""
        balancer, size = self._balancer, len(self.weights)
        if balancer is None or len(result.timings) != size or len(result.spans) != size:
            return None
        _check_divided(batch, result.spans)
        if batch.samples < self._batches.global_batch:
            return None
        measured = [
            Measured((span.stop - span.start) / self._batches.grain, fsum(times.get(name, 0.0) for name in _COMPUTING))
            for span, times in zip(result.spans, result.timings, strict=True)
        ]
        common_s = min(times.get("reduce", 0.0) for times in result.timings)  # whoever came last waited for nobody
        decision = balancer.observe(measured, common_s)
        if decision is None:
            return None
        self.weights = tuple(map(float, decision.weights))
        return Balanced(batch.cursor.step + 1, self.weights, decision.reason)


def _check_divided(batch: GlobalBatch, spans: Sequence[Span]) -> None:
    """Every worker decides for itself, so whoever decided otherwise must not go unnoticed for a step."""
    at = batch.start
    for span in spans:
        if span.stop > span.start:
            if span.start != at:
                break
            at = span.stop
    if at != batch.stop:
        raise ShoalError(
            f"the workers did not divide the batch of step {batch.cursor.step} among them: they computed "
            f"{', '.join(f'[{span.start}, {span.stop})' for span in spans)} of [{batch.start}, {batch.stop}). "
            "Go on from the last checkpoint with --set balance=off"
        )
