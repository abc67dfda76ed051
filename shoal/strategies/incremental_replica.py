"""What incremental training makes of a program on one worker: local weights, common weights, and a round of both.

A round is a transaction of the whole group. A view that breaks in it costs nothing but the lost worker's own work:
survivors keep their local weights and go on with what is left over, in the next view. What a worker holds in common
with the others, and what a newcomer is given, are the weights at the beginning of the round.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.comm.handing import hand_over
from shoal.core.cursor import GlobalBatch
from shoal.core.errors import NonFiniteLoss, PeerLost, ShoalError
from shoal.core.state import Piece, ShardedState
from shoal.core.teams import Rule
from shoal.core.world import World
from shoal.strategies.averaging import Averager
from shoal.strategies.base import Pass, Portion, Runtime, Span, StepResult, Strategy, Work
from shoal.strategies.common import CommonWeights
from shoal.strategies.leases import Leases
from shoal.strategies.likeness import Likeness, Sight, compare
from shoal.strategies.moments import average_moments
from shoal.strategies.outer import Outer
from shoal.strategies.pacing import Pace, first_pace, next_pace
from shoal.strategies.program import Program
from shoal.strategies.progress import Progress, heirs
from shoal.strategies.rounds import Round, Unit, left_over, plan_round, tasks, units
from shoal.strategies.sizing import Measured, SizeWish, Sizing, measured, next_size
from shoal.strategies.team import find_team, group_of_leaders

_VELOCITY, _RESIDUAL, _VALUES = "incremental.velocity", "incremental.residual", "incremental"


class IncrementalReplica:
    """The inner strategy's replica with its local weights, and the common weights beside them."""

    def __init__(self, inner: Strategy[Any], rule: Rule, program: Program, runtime: Runtime) -> None:
        self.inner, self._rule, self.program = inner, rule, program
        self._arrange(runtime)
        self.bound = inner.bind(program, self._inner_runtime(alike=True))
        module = program.model
        if not runtime.alike:
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                runtime.group.broadcast(tensor.data, 0, f"copying {name} from worker 0")
        self.common = CommonWeights(module)
        self.outer = Outer(runtime.incremental, self.common.flat)
        self.averager = Averager(self.common, runtime.codec, runtime.world.device)
        self._attach()
        self.pace = first_pace(runtime.incremental.h)
        self.plan: Round | None = None
        self.progress = Progress()
        self.committed: list[npt.NDArray[np.int64]] = []
        self._sent_s: float | None = None
        self._sent_among = 0  # so many trainers
        self._sizing = Sizing()
        self._share = 0.0

    # ---- teams

    def _arrange(self, runtime: Runtime) -> None:
        """Find this worker's team in the view, and the groups of the team and of all leaders."""
        team = find_team(runtime, self._rule)
        self.runtime, self.teams, self.team, self.leads = runtime, team.all, team.number, team.leads
        self.inner_group, self._rank_in_team = team.group, team.rank
        self.outer_group = group_of_leaders(runtime, team)

    def _inner_runtime(self, alike: bool) -> Runtime:
        runtime = self.runtime
        world = World(self._rank_in_team, len(self.teams[self.team]), runtime.world.device, runtime.world.seat)
        return replace(
            runtime, group=self.inner_group, world=world, codec="none", alike=alike, weights=(), compares=False
        )

    def _attach(self) -> None:
        runtime = self.runtime
        self._likeness = Likeness(self.program.model, runtime.view, runtime.world.device)
        self.averager.attach(self.outer_group, self.inner_group)
        self._leases = Leases(runtime.store, self.team, len(self.teams), self.inner_group)

    def reattach(self, program: Program, runtime: Runtime) -> None:
        """Take part in another view, with the local work of this round."""
        self._arrange(runtime)
        self.bound = self.inner.reconfigure(self.bound, program, self._inner_runtime(alike=True))
        self._attach()

    # ---- a round

    def round(self, work: Work) -> StepResult:
        """Do what is left of the round of `work.stretch`, average, and move the common weights. Collective."""
        batches = [batch for batch, _ in work.stretch]
        rates = [learning_rates for _, learning_rates in work.stretch]
        words = self._tell(work, self._see(batches[0].cursor.step))
        self._compare(words, batches[0].cursor.step)
        self._agree_on_plan(words, len(batches))
        self._inherit(words)
        assert self.plan is not None
        steps, attempt = units(self.plan, batches), 0
        while True:
            words = self._tell(work)
            if any(word["progress"]["failed"] for word in words):
                self.give_up()
                raise NonFiniteLoss(
                    work.batch.cursor.step, [rank for rank, word in enumerate(words) if word["progress"]["failed"]]
                )
            reports = [Progress.from_json(word["progress"]) for word in words if word["leads"]]
            remaining = self._remaining(len(steps), reports)
            if not remaining:
                break
            self._train(work, steps, remaining, batches, rates, f"round/{batches[0].cursor.step}/{attempt}")
            attempt += 1
        return self._average(words, reports, len(batches))

    def _see(self, step: int) -> Sight | None:
        """What this worker holds, where it has no local work: that is what all have in common."""
        return self._likeness.look(step) if self.runtime.compares and self.plan is None else None

    def _compare(self, words: list[dict[str, Any]], step: int) -> None:
        sights = [tuple(word["seen"]) for word in words if word["seen"] is not None]
        if len(sights) == len(words):
            compare(sights, self.runtime.view, step)

    def _tell(self, work: Work, seen: Sight | None = None) -> list[dict[str, Any]]:
        """Everyone's word on how far it is."""
        stop, change = work.wishes() if work.wishes is not None else (work.stop, work.change)
        word = {
            "plan": self.plan.to_json() if self.plan is not None else None,
            "progress": self.progress.to_json(),
            "leads": self.leads,
            "stop": stop,
            "change": change,
            "sent_s": self._sent_s,
            "sent_among": self._sent_among,
            "seen": seen,
        }
        told = self.runtime.group.gather_bytes(json.dumps(word).encode(), "telling how far the round is")
        return [json.loads(one) for one in told]

    def _agree_on_plan(self, words: list[dict[str, Any]], batches: int) -> None:
        """A round that was begun in an earlier view goes on as it was planned then."""
        begun = next((word["plan"] for word in words if word["plan"] is not None), None)
        if begun is not None:
            self.plan = Round(*begun)
        else:
            self.plan = plan_round(batches, len(self.teams), self.runtime.incremental.rho)

    def _inherit(self, words: list[dict[str, Any]]) -> None:
        """Settle whose local work this team goes on with, and have all its members at that."""
        owners = [str(word["progress"]["owner"]) for word in words]
        counts = [len(word["progress"]["done"]) for word in words]
        ranks = [[member.rank for member in team] for team in self.teams]
        mine, heir = ranks[self.team], heirs(ranks, owners, counts)[self.team]
        if heir is None and any(counts[rank] for rank in mine):
            self.common.restore()
        if len(mine) > 1 and any((owners[r], counts[r]) != (owners[mine[0]], counts[mine[0]]) for r in mine):
            self._copy_within_team(mine.index(heir if heir is not None else mine[0]))
        if heir is None:
            leader = self.teams[self.team][0]
            self.progress = Progress(owner=f"{leader.key}/{self.runtime.view.number}")
            self.committed.clear()

    def _copy_within_team(self, source: int) -> None:
        """All members of the team take over the local weights and the progress of one of them."""
        state = self.inner.live_state(self.bound)
        head = {
            "progress": self.progress.to_json(),
            "values": dict(state.values),
            "places": {name: [list(p.shape), list(p.offset)] for name, p in state.pieces.items()},
        }
        tensors = {name: piece.tensor for name, piece in state.pieces.items()}
        told, copied = hand_over(self.inner_group, source, head, tensors)
        if self._rank_in_team != source:
            pieces = {
                name: Piece(copied[name], tuple(shape), tuple(offset))
                for name, (shape, offset) in told["places"].items()
            }
            self.inner.load(self.bound, ShardedState(pieces, told["values"]))
        self.progress = Progress.from_json(told["progress"])

    def _remaining(self, count: int, reports: Sequence[Progress]) -> list[int]:
        try:
            return left_over(count, [report.done for report in reports])
        except AssertionError as error:
            raise ShoalError(f"samples would shape the model twice: {error}") from None

    def _train(
        self, work: Work, steps: list[Unit], remaining: list[int], batches: Sequence[GlobalBatch],
        rates: Sequence[tuple[float, ...]], key: str,
    ) -> None:  # fmt: skip
        """Lease from what is `remaining` and do it, until nothing is left to lease."""
        assert self.plan is not None
        drawn: deque[int] = deque()
        share, team_size = self._rank_in_team, len(self.teams[self.team])

        def portions() -> Iterator[Portion]:
            for number in self._tasks(remaining, key):
                unit = steps[number]
                drawn.append(number)
                # maybe without a grain for this worker: it takes part all the same, when the others do
                yield batches[unit.at], _as_batch(batches[unit.at], unit).share(share, (1.0,) * team_size)

        assert work.stream is not None, "a strategy that leases is given a stream"
        for passes in work.stream(portions()):
            number = drawn.popleft()
            self._local_step(number, steps[number], batches, rates, passes)
            if self.progress.failed:
                return

    def _tasks(self, remaining: list[int], key: str) -> Iterator[int]:
        """The units of the tasks that this trainer takes, as it takes them."""
        assert self.plan is not None
        if self.runtime.incremental.rho == 1.0:  # every trainer has its own part, whoever is quicker
            yield from remaining[self.team :: len(self.teams)]
            return
        cut = tasks(self.plan, remaining)
        for number in self._leases.take(key, len(cut)):
            yield from cut[number]

    def _local_step(
        self, number: int, unit: Unit, batches: Sequence[GlobalBatch], rates: Sequence[tuple[float, ...]],
        passes: Sequence[Pass],
    ) -> None:  # fmt: skip
        runtime = self.runtime
        if runtime.control.broken(runtime.view.number):
            raise PeerLost(f"view {runtime.view.number} was broken during a round")
        began = time.perf_counter()
        step = Work(_as_batch(batches[unit.at], unit), passes, rates[unit.at])
        try:
            result = self.inner.step(self.bound, step)
        except NonFiniteLoss:
            self.progress.failed = True
            return
        progress = self.progress
        progress.done[number] = tuple(span for span in result.spans if span.stop > span.start)
        progress.samples += unit.samples
        progress.loss_sum += result.loss_sum
        progress.loss_weight += result.loss_weight
        progress.computing_s += time.perf_counter() - began
        self.committed.append(result.committed)

    def _average(self, words: list[dict[str, Any]], reports: Sequence[Progress], steps: int) -> StepResult:
        runtime, began = self.runtime, time.perf_counter()
        runtime.control.enter(runtime.world.seat, runtime.control.progress(runtime.world.seat)[0], "reduce")
        total = sum(report.samples for report in reports)
        self._share = self.progress.samples / total
        computing_s = max(report.computing_s for report in reports)
        chosen = self.averager.choice
        with runtime.spans("reduce"):
            difference = self.averager.average(self._share, self._paid_for_s(computing_s, steps))
        sent_s = time.perf_counter() - began - self.averager.choosing_s
        with runtime.spans("update"):
            self.common.move(self.outer.step(difference))
            self.averager.commit()
        sent = [word["sent_s"] for word in words if word["sent_s"] is not None]
        size = self._weigh(words, computing_s, steps)
        if sent or runtime.incremental.h == "growing":  # of the round before: this one's is not known to the others
            self.pace = next_pace(runtime.incremental.h, self.pace, steps, computing_s, max(sent, default=0.0))
        spans: list[Span] = [span for report in reports for spans in report.done.values() for span in spans]
        committed = np.concatenate(self.committed) if self.committed else np.empty(0, dtype=np.int64)
        self._sent_s, self._sent_among = sent_s if len(self.teams) > 1 else 0.0, len(self.teams)
        if not self.leads:  # what it waited for is not known to it
            self._sent_s = None
        self._begin_anew()
        return StepResult(
            sum(report.loss_sum for report in reports),
            sum(report.loss_weight for report in reports),
            committed,
            any(word["stop"] for word in words),
            tuple({"computing": float(word["progress"]["computing_s"])} for word in words),
            self.averager.bytes_sent,
            any(word["change"] for word in words),
            tuple(spans),
            codec=self.averager.choice if self.averager.choice is not chosen else None,
            size=size,
        )

    def _paid_for_s(self, computing_s: float, steps: int) -> float:
        """The time of the local steps that an average is weighed against: those of a round, or one where the number of
        them follows from what an average costs."""
        h = self.runtime.incremental.h
        return computing_s / steps * (h if isinstance(h, int) else 1)

    def _weigh(self, words: list[dict[str, Any]], computing_s: float, steps: int) -> SizeWish | None:
        """Whether more or fewer workers would be better, where that may be asked for."""
        bounds, trainers = self.runtime.bounds, len(self.teams)
        # of the round before, which may have been another view's: then it says nothing of this one
        sent = [word["sent_s"] for word in words if word["sent_s"] is not None and word["sent_among"] == trainers]
        if bounds is None or not sent:
            return None
        seen = self._measured(trainers, steps, computing_s, max(sent))
        self._sizing, wish = next_size(self._sizing, self.runtime.view.number, seen, bounds)
        return wish

    def _measured(self, trainers: int, steps: int, computing_s: float, sending_s: float) -> Measured:
        runtime = self.runtime
        h = runtime.incremental.h
        return measured(trainers, h, self.pace.steps, steps, computing_s, sending_s, self.averager.coded)

    def _begin_anew(self) -> None:
        self.plan, self.progress = None, Progress()
        self.committed = []

    def give_up(self) -> None:
        """All local work of this round is undone."""
        self.common.restore()
        self._begin_anew()

    # ---- state

    def whole(self, state: ShardedState, moments: bool) -> ShardedState:
        """`state` of the inner replica with what this strategy adds to it. Collective if `moments` are averaged."""
        pieces, values = dict(state.pieces), dict(state.values)
        if moments:
            pieces.update(average_moments(self.outer_group, self._share, pieces))
            residual = self._summed_residual()
            if residual is not None:
                pieces[_RESIDUAL] = Piece.whole(residual)
        if self.outer.velocity is not None:
            pieces[_VELOCITY] = Piece.whole(self.outer.velocity)
        values[_VALUES] = {"pace": self.pace.to_json(), "plan": self.plan.to_json() if self.plan is not None else None}
        if not moments:  # for a newcomer; a run that goes on from a checkpoint may do so on other machines
            values[_VALUES]["sizing"] = self._sizing.to_json()
        return ShardedState(pieces, values)

    def _summed_residual(self) -> torch.Tensor | None:
        """What all trainers have left out, each weighted as in the last average: a trainer that takes it over with the
        share of all sends just that."""
        residual, outer = self.averager.residual(), self.outer_group
        if residual is None or outer is None:
            return None
        residual.mul_(self._share)
        outer.all_reduce(residual, "adding up what codecs have left out")
        return residual

    def live_state(self) -> ShardedState:
        self.common.swap()
        try:
            state = self.inner.live_state(self.bound)
            copies = {name: Piece(p.tensor.detach().clone(), p.shape, p.offset) for name, p in state.pieces.items()}
        finally:
            self.common.swap()
        return self.whole(ShardedState(copies, state.values), moments=False)

    def load(self, state: ShardedState) -> None:
        self.inner.load(self.bound, state)
        self.common.settle()
        self._begin_anew()
        velocity, residual = state.pieces.get(_VELOCITY), state.pieces.get(_RESIDUAL)
        if self.outer.velocity is not None:
            if velocity is not None:
                self.outer.velocity.copy_(velocity.tensor)
            else:
                self.outer.velocity.zero_()
        # all trainers take it over whole: they send it each by its share, and the shares add up to one
        self.averager.load(residual.tensor.clone() if residual is not None else None)
        values = state.values.get(_VALUES) or {}
        if values.get("pace") and not isinstance(self.runtime.incremental.h, int):
            self.pace = Pace(int(values["pace"][0]), values["pace"][1])
        self.plan = Round(*values["plan"]) if values.get("plan") else None
        self._sizing = Sizing(*values.get("sizing", ()))


def _as_batch(batch: GlobalBatch, unit: Unit) -> GlobalBatch:
    """A unit as the batch of a local step."""
    return GlobalBatch(batch.cursor, unit.grains[0].start, unit.grains[-1].stop, unit.grains)
