"""One worker's part in training with servers: what its team computes is staged there, what they hold is read back.

Gradients are added up within the team, bucket by bucket, while backward still runs; the team's leader stages each
bucket as a part of the transaction of its own, without waiting, and waits for all of them at the end. A worker on its
own is a team of one. The team gets what the servers have made of the model from its leader.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from torch import Tensor, nn

from shoal.core.errors import ShoalError
from shoal.core.state import Piece, ShardedState
from shoal.core.teams import Rule
from shoal.store.checking import Given, Rows
from shoal.store.errors import StateLost
from shoal.store.operations import Era
from shoal.strategies.base import Runtime, Span, Work
from shoal.strategies.program import Program
from shoal.strategies.push_coding import PushCoding
from shoal.strategies.replica import Gradient, span_of
from shoal.strategies.team_model import TeamModel
from shoal.strategies.touched import touched_rows

_SERVED = "served"  # in the values of a live state: the rest is with the servers


class Done(NamedTuple):
    """What a member of the team has computed in a step."""

    loss_sum: float
    weight: float
    bad: bool  # its loss is not finite
    span: Span


class ServedReplica(TeamModel):
    """`team` says with whom this worker adds its gradients up before they go to the servers."""

    def __init__(self, program: Program, runtime: Runtime, team: Rule = 1, local: bool = False) -> None:
        super().__init__(program, runtime, team, local, on_final=self._stage_early)
        self._transaction: str | None = None  # that is staged while backward still runs
        self._coding_size = 1.0
        self._staged: set[int] = set()  # buckets
        self._under_way: list[Future[None]] = []
        self.waited_s = 0.0  # in this step, for what was staged
        try:
            self.coding = PushCoding(self.kv, runtime.codec, runtime.world.device)
            self._arrange(runtime)
            if runtime.alike:  # the state is on the servers: which it is will be told by `load`
                self.met, self.recalled = False, list[dict[str, Any]]()
                _once_more(self._declare)
            else:
                self._write_anew({})
        except BaseException:
            self.close()
            raise

    # ---- members that change

    def attach(self, runtime: Runtime) -> None:
        """Take part in another view. Collective."""
        self._arrange(runtime)
        self._settle()

    def _settle(self) -> None:
        """What members of earlier views have left half done is done or dropped. `recalled` are the records of commits
        that the servers remember; the group does not know yet whether all of it has them, hence `met`."""
        self.met = False
        self.recalled = []
        view, pushing = self.runtime.view.number, {team[0].key for team in self.team.all}

        def abandoned(transaction: str) -> bool:
            of_view, of_era, run = transaction.split("/")[:3]
            return int(of_view) < view or (run == self.run and int(of_era) < self.era)

        try:
            if self.era:
                self._see_era()
            self.kv.settle(abandoned)
            for worker in self.kv.progress().clocks:
                if worker not in pushing:
                    self.kv.release(worker)
            # only now nothing of an earlier view can be committed any more
            commits = self.kv.records(era=self.kv.era) if self.era else []
            self.recalled = [json.loads(one.record) for one in commits if one.record]
            self.coding.settle({one.transaction for one in commits}, len(pushing))
            if self.team.size > 1:  # from here on a member is told only what has changed for its leader
                self.download()
        except StateLost:
            self.lost = True

    def discard(self) -> None:
        super().discard()
        self._rows.clear()
        self._let_go()

    # ---- a step

    def begin(self, transaction: str | None, size: float = 1.0) -> None:
        """A step begins. With `transaction`, what is final is staged under this name while backward still runs; with a
        codec, it is told how many samples the sum is divided by later."""
        self.forget_gradients()
        self._let_go()
        self._arriving.begin()
        self._transaction, self._coding_size = transaction, size
        self._staged.clear()
        self.waited_s = 0.0
        if transaction is not None:
            self.begin_coding(transaction)

    def begin_coding(self, transaction: str) -> None:
        """What is encoded from now on belongs to `transaction`."""
        if self.team.leads:
            self.unless_lost(lambda: self.coding.begin(transaction))

    def arm(self, gradient: Gradient) -> None:
        """The last pass goes backward now."""
        self._arriving.arm(gradient.weight)

    @property
    def overlapped_s(self) -> float:
        """How much of the backward passes of this step went into sending."""
        return self._arriving.seconds

    def sum_up(self, gradient: Gradient, work: Work) -> list[Done]:
        """Add up, over the team, what the passes have given. Returns what each member has done. Collective within the
        team."""
        bad, span = not math.isfinite(gradient.loss_sum), span_of(work)
        facts = [0.0 if bad else gradient.loss_sum, gradient.weight, float(bad), span.start, span.stop, span.digest]
        everyone = self._arriving.finish(facts, self.buffers.changes).tolist()
        if self._table_keys and self.team.size > 1:
            self._gather_rows()
        return [Done(loss, weight, bool(bad), Span(*map(int, span))) for loss, weight, bad, *span in everyone]

    # ---- what is left with the servers

    @property
    def parts_each(self) -> int:
        """Into how many parts of a transaction the gradient of a team goes."""
        return max(1, self._arriving.count)

    @property
    def parts(self) -> range:
        """Those of all teams."""
        return range(len(self.team.all) * self.parts_each)

    def _stage_early(self) -> None:
        """Within backward: stage what is final. The last bucket waits for what goes with it."""
        if self._transaction is not None and self.team.leads:
            for bucket in range(self._arriving.count - 1):
                if bucket not in self._staged and self._arriving.is_summed(bucket):
                    self._stage_bucket(self._transaction, bucket)

    def stage_rest(self) -> None:
        """Stage what has not been staged yet, and wait until the servers have everything."""
        assert self._transaction is not None
        if self.team.leads:
            for bucket in range(self.parts_each):
                if bucket not in self._staged:
                    self._stage_bucket(self._transaction, bucket)
        self.wait_staged()

    def wait_staged(self) -> None:
        """Wait until the servers have what is being staged."""
        began = time.perf_counter()
        while self._under_way:
            one = self._under_way.pop()
            self.unless_lost(lambda: self.kv.wait(one))  # noqa: B023 - called at once
        self.waited_s += time.perf_counter() - began

    def _stage_bucket(self, transaction: str, bucket: int) -> None:
        self._staged.add(bucket)
        part, last = self.team.number * self.parts_each + bucket, bucket == self.parts_each - 1

        def given() -> dict[str, Given]:
            sums = {name: self._as_given(name, one) for name, one in self._arriving.sums(bucket)}
            return {**sums, **self._rows_given(), **self.buffer_change()} if last else sums

        self.stage(transaction, part, given)

    def stage(self, transaction: str, part: int, given: Callable[[], Mapping[str, Given]]) -> None:
        """Begin to leave a part of a transaction with the servers, unless they are known to have gone back."""
        self.unless_lost(lambda: self._under_way.append(self.kv.stage(transaction, part, given())))

    def _let_go(self) -> None:
        """What is being staged is not needed any more; its memory is, and so is the news that it is lost."""
        done, _ = wait(self._under_way, self.kv.deadline_s)
        self._under_way = []
        self.lost = self.lost or any(isinstance(one.exception(), StateLost) for one in done)

    def buffer_change(self) -> dict[str, Given]:
        """What the passes of this step have done to the running statistics."""
        change = self._arriving.statistics.cpu().numpy()
        return {name: change[start:stop] for name, (start, stop, _) in self._statistics.items()}

    def _rows_given(self) -> dict[str, Given]:
        return {name: self._as_given(name, grad) for name, grad in self._rows.items()}

    def _as_given(self, name: str, grad: Tensor) -> Given:
        if name in self._table_keys:
            rows, values = touched_rows(grad.detach())
            return Rows(rows.numpy(), values.numpy(), everywhere=True)
        return self.coding.encode(name, grad.detach(), self._keys[name].dtype, self._coding_size)

    def forget_gradients(self) -> None:
        self._rows.clear()
        for parameter in self._keys.values():
            parameter.grad = None

    # ---- state

    def state(self) -> ShardedState:
        """The whole state, as the servers hold it."""
        self.download()
        self.read_moments()
        return super().state()

    def live_state(self) -> ShardedState:
        if self.local:
            state = super().live_state()
            return ShardedState(state.pieces, {**state.values, _SERVED: self.era})
        return ShardedState({}, {_SERVED: self.era})

    def residuals(self) -> dict[str, Piece]:
        """What the codecs of all workers have left out so far. Collective."""
        return self.coding.pieces(self._coded, self.runtime.group)

    def load(self, state: ShardedState) -> None:
        if _SERVED in state.values:  # it was copied from another worker: the servers have the rest
            if self.local:
                super().load(state)
            self.enter_era(int(state.values[_SERVED]))
            self.unless_lost(self.download)
            self._settle()  # the records of this era are true of the state
            return
        super().load(state)
        self._write_anew(state.pieces)

    def _see_era(self) -> None:
        """Whether the state on the servers is still the one that this worker works with. A load that was broken off,
        or one that only others have seen the end of, has left another there."""
        if self.kv.eras().get(self.run) != self.era:
            self.lost = True

    def _write_anew(self, residuals: Mapping[str, Piece]) -> None:
        """What the first worker's model holds becomes the state on the servers, and what they know of any other is
        void: whatever was done to that has not been done to this. Until all of it is there and everybody knows, no
        worker takes it for its own. `residuals`: what codecs have still to send. Collective."""
        group, first, before = self.runtime.group, self.runtime.world.is_first, self.era
        number = 0
        while not number:  # again where servers were lost meanwhile: nothing of it is left there
            self.lost, self.kv.era, begun = False, None, [0]
            self._seen.clear()
            self.unless_lost(self._declare)
            if first:
                self.unless_lost(lambda: begun.append(self.kv.renew(self.run, before).number))  # noqa: B023
            begun = [int(one) for one in group.gather_bytes(b"%d" % begun[-1], "beginning a state on the servers")]
            self.kv.era = Era(self.run, begun[0])
            if first and begun[0]:
                self.unless_lost(self.upload)
            self.unless_lost(lambda: self.coding.load_pieces(self._coded, residuals if first else {}))
            written = group.gather_bytes(b"" if self.lost else b"1", "a state goes to the servers")
            number = begun[0] if all(written) else 0
        self.enter_era(number)
        self.unless_lost(self.download)
        self._settle()

    @property
    def _coded(self) -> dict[str, tuple[str, nn.Parameter]]:
        """What may be coded, by key: the parameters that are no tables, with their own names."""
        return {key: one for key, one in zip(self._keys, self.parameters, strict=True) if key not in self._table_keys}

    def close(self) -> None:
        """Take the hooks off the model, and leave the servers. May be called twice."""
        self._arriving.close()
        self.forget_gradients()
        self.kv.close()


def _once_more(do: Callable[[], None]) -> None:
    """Every client is told once that the servers have gone back, maybe only now: then this is done anew."""
    try:
        do()
    except StateLost:
        do()


def scale_for_norm(squares: float, limit: float | None) -> float:
    """By what a gradient is multiplied to keep within `limit`, as torch's own clipping does it."""
    if limit is None:
        return 1.0
    norm = math.sqrt(squares)
    if not math.isfinite(norm):
        raise ShoalError("the gradient is not finite: clip.norm cannot be applied to it")
    return min(1.0, limit / (norm + 1e-6))
