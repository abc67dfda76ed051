"""A run on one worker: the cursor moves by acts, each a transaction; around them checkpoints, events, changing members.

This is what `Trainer.fit` and `prepare` drive. It never asks which strategy it has. An act that breaks because a worker
is lost is done again in the next view, from the live state of whoever is furthest (see `Ledger`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shoal.comm.handing import hand_over
from shoal.core.arrivals import NOTHING, Instalment
from shoal.core.cursor import Batches, Cursor, GlobalBatch
from shoal.core.errors import CheckpointError, NonFiniteLoss, NonFiniteState, PeerDiffers, PeerLost, ShoalError
from shoal.core.events import CodecChosen, Evaluated, Event, FilesArrived, RunEnded, SizeWished, StepCommitted, Warned
from shoal.core.length import Length
from shoal.core.order import Indices
from shoal.core.spans import Spans
from shoal.core.world import View
from shoal.data.following import FollowingSource
from shoal.data.source import Source
from shoal.elastic.attendance import RunOver
from shoal.launch.session import WARNING, Session, SessionEnd
from shoal.store.errors import StateLost
from shoal.strategies.base import Runtime, StepResult, Work
from shoal.train.balancing import Balancing
from shoal.train.beside import begin_beside
from shoal.train.comparing import compare_losses, compares, gather_losses, probe
from shoal.train.evaluate import AUTO_BATCH, evaluate
from shoal.train.feed import Feed
from shoal.train.fleet import idle_servers, reach_fleet, servers_of
from shoal.train.following import evaluated_elsewhere
from shoal.train.growth import agree, count
from shoal.train.idle import idle_workers
from shoal.train.ledger import Ledger, Result
from shoal.train.live import Live
from shoal.train.mirrored import RunMirror
from shoal.train.opening import Opened, claim, greet, join_run, open_run
from shoal.train.place import NO_STATE, Place
from shoal.train.rates import Rates
from shoal.train.record import Account, peak_memory_bytes, summary
from shoal.train.saving import CoverageRecord, Resumed, Saver
from shoal.train.scribe import Scribe
from shoal.train.sizing import bounds_of, size_message
from shoal.train.spec import RunSpec
from shoal.train.starting import Standing
from shoal.train.stretch import Stretch

_INTERRUPTED_S = 10.0  # for the last copy of a checkpoint, where someone waits for the end of the run


class Run:
    """Ready to train when the constructor returns; `finish` ends it and gives its summary. All calls are collective.

    Use: ``for work in run.works(): run.step(work)``, then `finish()`; or `fail()` on the way out of an error.
    """

    def __init__(self, spec: RunSpec, session: Session, number: int) -> None:
        self._began = time.perf_counter()
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self._closing.close)
            self._spec, self._session, self._strategy = spec, session, spec.strategy
            self._number, self._attendance = number, session.attendance
            self._open_run = begin_beside(session, spec.strategy, self._closing)
            self._bounds = bounds_of(spec.config, spec.strategy, session)
            self._set_threads(spec.config.threads)
            self._spans, self._account, self.ledger = Spans(), Account(), Ledger(data=spec.data_digest)
            self._work: Work | None = None  # handed out and not yet done
            self._saved_at = self._began
            self._went_back = self._probes = False  # the latter: it is yet to be seen whether all compute the same
            self._stored: dict[str, Any] | None = None  # the summary of this run before it was started again
            self._lost_servers: queue.SimpleQueue[str] = queue.SimpleQueue()  # this process's own: not yet told
            self._fleet = functools.cache(
                lambda: reach_fleet(session, spec.config, spec.strategy, number, self._closing, self._lost_servers.put)
            )
            with ends_with_the_run(session):
                self._come_in(self._attendance.enter(number))
            self._do_due()  # what is left of the last step of those who were there before
            undo.pop_all()

    # ---- coming in

    @property
    def _survives(self) -> bool:
        return self._attendance.survives and self._strategy.needs.survives and not self._open_run.beside

    def _set_threads(self, threads: int) -> None:
        """The number of threads decides the order of sums within an operation, so it is a setting of the run."""
        self._closing.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)

    def _come_in(self, view: View) -> None:
        """Begin the run with the others, or join them in it."""
        while True:
            opening = contextlib.ExitStack()
            try:
                self._place = Place(self._session, view, self._spec.config)
                opening.callback(self._close_place)
                self._scribe = Scribe(self._spec, self._session, opening)
                source, _ = self._place.compare(NO_STATE)
                if source is None:
                    self._open(opening)
                else:
                    head, tensors = hand_over(self._place.group, source, {}, {})
                    opened = join_run(self._spec, self._session, head["opened"])
                    self._join(Live.of(head, tensors), opened, opening)
                self._closing.push(opening)
                self._seen_view = 0
                return
            except PeerLost as lost:
                opening.close()
                if not self._survives or isinstance(lost, PeerDiffers):
                    raise
                view = self._attendance.next(view, broken=True)
            except BaseException:
                opening.close()
                raise

    def _open(self, opening: contextlib.ExitStack) -> None:
        """Nobody has any state: agree on everything, and go on from the newest checkpoint if there is one."""
        place = self._place
        self._settle(open_run(self._spec, self._session, self._number, place))
        self._balancing.meet(place)
        self._bind(opening, alike=False)
        self._probes = self._strategy.needs.whole and place.group.size > 1 and compares(self.config, self._spec.train)
        if self._probes and not self._strategy.needs.apart:
            self._probes = False
            compare_losses(gather_losses(self._probe(), place.group), place.view)
        claim(self._opened, self._session, opening, place)
        opening.callback(self._saver.close)
        stored = self._opened.run_dir.summary() if place.keeps_record else None
        self._stored = json.loads(place.group.gather_bytes(json.dumps(stored).encode(), "looking at its past")[0])
        notes: list[Event] = [Warned(words) for words in self._known_limits()]
        if self._mirror is not None and place.keeps_record:
            self._mirror.claim(self.config, self._session.script, notes.append)
        find = functools.partial(self._saver.newest_anywhere, notes.append)
        found, resumed = place.wait_for_first(find, "looking for a checkpoint")
        self._saver.settle(place.keeps_record)
        if found:
            parts = resumed.live.parts({}) if resumed is not None else ({}, {})
            self._load(Live.of(*hand_over(place.group, 0, *parts)))
        elif self._snapshots:
            self.ledger.due.append("save")  # there must always be one to go back to
        self._expect_files()
        self._scribe.begin(
            self._opened, place, self._batches, greet(place), self._standing(resumed.path if resumed else None), notes
        )
        self._new_feed(opening)

    def _probe(self) -> float:
        """What all workers must find alike, as long as their parameters are the same."""
        self._enter("compare")
        return probe(self._spec.program, self._spec.train, self.config, self._place.world.device)

    def _known_limits(self) -> list[str]:
        """What a user should know before the first step."""
        warnings = [idle_servers(self.config, self._strategy) or "", self._idle() or ""]
        if self._attendance.survives and not self._survives and self._place.view.size > 1:
            name = self._strategy.name
            why = "two runs at the same time do" if self._open_run.beside else f"strategy {name} does"
            warnings.append(f"{why} not survive the loss of a worker: one that is lost ends the run")
        if (aging := self._strategy.aging(self._replica)) is not None:
            warnings.append(aging.risk(aging.expected))
        warnings += self._strategy.known_limits(self._replica)
        return [words for words in warnings if words]

    def _idle(self) -> str | None:
        return idle_workers(self._strategy, self._batches, self._opened.cutting, self._balancing.weights)

    def _join(self, live: Live, opened: Opened, opening: contextlib.ExitStack) -> None:
        """The others are under way: take over their state."""
        self._settle(opened)
        self._balancing.meet(self._place)
        self._bind(opening, alike=True)
        opening.callback(self._saver.close)
        self._load(live)
        self._saver.settle(self._place.keeps_record)
        self._scribe.take_over(self._opened, self._place, self._batches, None, self._standing())
        self._new_feed(opening)

    def _settle(self, opened: Opened) -> None:
        self._opened, self.config = opened, opened.config
        self._growing = self._spec.growing
        if self._growing is not None:
            self._growing.take(NOTHING)
        self._cut()
        self._coverage = CoverageRecord(len(self._spec.train), whole=self._strategy.needs.survives)
        self._mirror = RunMirror.of(self.config, self._number, opened.run_dir)
        self._saver = Saver(opened.run_dir.checkpoints, self.config, self._session.script, self._mirror)
        self._balancing = Balancing(self.config, self._batches, self._strategy.needs.leases)

    def _cut(self) -> None:
        """See how the samples of an epoch are cut, and in which order they come."""
        train, config = self._spec.train, self.config
        self._batches = Batches(len(train), config.global_batch, config.grain)  # type: ignore[arg-type]  # settled by open_run
        self._samples_order = train.order(config.seed, config.loader.shuffle, self._batches)

    def _bind(self, opening: contextlib.ExitStack, alike: bool) -> None:
        self._replica = self._strategy.bind(self._spec.program, self._runtime(alike))
        opening.callback(lambda: self._strategy.close(self._replica))
        self._initial_rates = self._strategy.initial_learning_rates(self._replica)
        self._rates = Rates(self._spec.schedule, self._initial_rates, self._batches.per_epoch)

    def _runtime(self, alike: bool) -> Runtime:
        config = self.config
        return Runtime(
            world=self._place.world,
            view=self._place.view,
            group=self._place.group,
            control=self._session.control,
            seed=config.seed,
            clip=config.clip,
            precision=config.precision,
            exact_sums=config.sums == "float64" or (config.sums == "auto" and not self._opened.cutting.merged),
            statistics=config.statistics,
            draws=self._opened.cutting.draws,
            layout=config.layout,
            bucket_bytes=int(config.comm.bucket_mib * (1 << 20)),
            alike=alike,
            spans=self._spans,
            codec=config.comm.codec,
            store=self._place.store,
            subgroup=self._place.subgroup,
            weights=self._balancing.weights,
            incremental=config.incremental,
            hybrid=config.hybrid,
            server=config.server,
            asynchronous=config.asynchronous,
            fit=self._number,
            fleet=self._fleet(),
            hang_s=config.elastic.hang_s,
            bounds=self._bounds,
            compares=config.compare == "on",
        )

    def _new_feed(self, closing: contextlib.ExitStack | None = None) -> None:
        weights = self._balancing.weights
        self._feed = Feed(
            self._spec, self._opened, self._place, self._batches, weights, self.cursor, self._read_until, self._warn
        )  # fmt: skip
        if (news := self._balancing.news(self.cursor.step)) is not None:
            self._scribe(news)
        if closing is not None:
            closing.callback(self._close_feed)

    def _warn(self, words: str) -> None:
        """Something went wrong on this worker and was mended: let the user know, and the run directory."""
        me = self._place.me
        words = f"worker {me.rank} on {me.host}: {words}"
        if self._place.keeps_record:
            self._scribe(Warned(words))
        else:
            print(f"shoal: {words}", file=sys.stderr)  # to its log
            self._session.report({"type": WARNING, "message": words})

    def _tell_lost_servers(self) -> None:
        """Which of this process's own servers were lost since the last call, and why."""
        while not self._lost_servers.empty():
            self._scribe(Warned(self._lost_servers.get()))

    def _close_feed(self) -> None:
        self._feed.close()

    def _close_place(self) -> None:
        self._place.close()

    # ---- members that change

    def _live(self) -> Live:
        account = self._account
        return Live(
            self._strategy.live_state(self._replica),
            torch.from_numpy(self._coverage.combined(self._place.group)),
            self._coverage.finished,
            (account.epoch_loss, account.epoch_weight),
            self.ledger,
        )

    def _load(self, live: Live) -> None:
        """Take over the state of another worker, or of a checkpoint."""
        live.ledger.go_on_with(self._spec.data_digest)
        self._strategy.load(self._replica, live.state)
        if self._growing is not None and live.ledger.arrivals != self.ledger.arrivals:
            self._coverage = CoverageRecord(0, whole=self._strategy.needs.survives)
            self._cut_instalment(self._growing, live.ledger.arrivals)
        self._coverage.restore(live.counts.numpy(), live.finished, self._place.is_first)
        problem = self._batches.problem(live.ledger.cursor) if self._growing is None else ""
        if problem:
            raise CheckpointError(
                f"the checkpoint of step {live.ledger.cursor.step} is whole, but makes no sense: {problem}. Delete it "
                "to go on from the one before, or choose another --run-dir"
            )
        self._account.restore(*live.epoch_loss)
        self.ledger = live.ledger

    def _move_on(self, broken: bool) -> None:
        """Leave the view and go on in the next: at the end of a step, or because this one is broken."""
        with self._spans("membership"), ends_with_the_run(self._session):
            before, view = self._place, self._place.view
            self._work = None
            self._feed.close()
            self._place.close()
            while True:
                view = self._attendance.next(view, broken)
                try:
                    self._meet(view)
                    break
                except PeerLost:
                    self._place.close()
                    broken = True
            place = self._place
            self._saver.settle(place.keeps_record)
            self._scribe.take_over(self._opened, place, self._batches, before.view, self._standing())
            self._new_feed()
            if place.view.size > before.view.size and (idle := self._idle()) is not None:
                self._scribe(Warned(idle))

    def _meet(self, view: View) -> None:
        """Come together in `view`: who is behind takes over the state of who is furthest. Collective."""
        self._place = place = Place(self._session, view, self._spec.config)
        self.ledger.saved = None  # who was about to write it may be lost, or behind
        source, behind = place.compare(self.ledger.acts)
        assert source is not None, "this worker has state"
        live: Live | None = None
        if behind:
            parts = self._live().parts(self._opened.to_json()) if place.world.rank == source else ({}, {})
            live = Live.of(*hand_over(place.group, source, *parts))
        self._balancing.meet(place)
        self._replica = self._strategy.reconfigure(self._replica, self._spec.program, self._runtime(alike=True))
        if live is not None and live.ledger.acts > self.ledger.acts:
            self._load(live)

    def _act(self, do: Callable[[], Result], undo: Callable[[], None] = lambda: None, once: bool = False) -> Result:
        """Do what all workers do together, again and again until it is done, by this view or by a later one. `once`:
        where the view breaks, return None, and let the caller see what is to be done in the next."""
        while True:
            number = self.ledger.acts
            try:
                result = do()
            except PeerLost:
                if not self._survives:
                    raise
                undo()
                self._move_on(broken=True)
            except StateLost:
                undo()
                self._go_back_together()
            else:
                self.ledger.complete(result)
                return result
            if self.ledger.acts > number:  # another worker had done it
                return self.ledger.result
            if once:
                return None

    def _go_back_together(self) -> None:
        """Go back; where the view breaks meanwhile, its servers have a state that nobody took for the run's, and the
        next view finds that out and goes back anew."""
        try:
            self._go_back()
        except PeerLost:
            if not self._survives:
                raise
            self._move_on(broken=True)

    def _go_back(self) -> None:
        """The servers have lost the model: all workers return to the newest checkpoint, and do again what came after
        it. Model and record of samples go back together. Collective."""
        place = self._place
        if self.total_steps is None:
            raise ShoalError(
                "the servers have lost the model, and a loop of your own cannot go back: run the same command again to "
                "go on from the newest checkpoint. With server.replicas=2 the loss of a server loses nothing"
            )
        self._work = None
        self._feed.close()
        resumed: Resumed | None = None
        lost = self.cursor.step
        self._tell_lost_servers()
        if place.keeps_record:
            for event in self._saver.flush():
                self._scribe(event)
            resumed = self._saver.newest(self._scribe)
        if not place.group.gather_bytes(b"1" if resumed is not None else b"", "looking for a checkpoint")[0]:
            raise ShoalError(
                "the servers have lost the model, and there is no checkpoint: set checkpoint.every or server.replicas=2"
            )
        parts = resumed.live.parts({}) if resumed is not None else ({}, {})
        live, acts = Live.of(*hand_over(place.group, 0, *parts)), self.ledger.acts
        self._load(live)
        self.ledger.acts, self._went_back = acts, True
        self._scribe(Warned(f"the servers had lost the model: back from step {lost:,} to step {self.cursor.step:,}"))
        self._new_feed()

    def _leave_view(self) -> None:
        """The group has agreed to leave its view at the end of this step."""
        going = self._attendance.going
        try:
            words = self._place.group.gather_bytes(b"1" if going else b"", "asking who goes")
        except PeerLost:
            self._move_on(broken=True)
            return
        if not going:
            self._move_on(broken=False)
            return
        if all(words):  # nobody is left to copy from
            with contextlib.suppress(PeerLost):
                self._save()
        with contextlib.suppress(ShoalError):
            for event in self._saver.flush():
                self._scribe(event)
        self._attendance.depart(self._place.view)
        self._closing.close()
        self._session.report({"type": "departed"})
        raise SessionEnd

    # ---- what comes next

    @property
    def cursor(self) -> Cursor:
        return self.ledger.cursor

    @property
    def steps_per_epoch(self) -> int:
        return self._batches.per_epoch

    @property
    def total_steps(self) -> int | None:
        """The length of the run in steps; None where the user's own loop decides."""
        if self.config.steps is not None:
            return self.config.steps
        if self._growing is not None:
            return None
        return self.config.epochs * self._batches.per_epoch if self.config.epochs is not None else None

    @property
    def done(self) -> bool:
        if self.ledger.stopping or (self.total_steps is not None and self.cursor.step >= self.total_steps):
            return True
        if self._growing is None:
            return False
        most = self.config.epochs
        return self.ledger.arrivals.over or (most is not None and self.cursor.epoch >= most)

    @property
    def _read_until(self) -> int | None:
        """The step up to which it is known what will be read; None: for ever."""
        if self._growing is None:
            return self.total_steps
        at, ends = self.cursor, self.total_steps
        known = self._batches.per_epoch - at.batch if self.ledger.arrivals.epoch == at.epoch else 0
        return at.step + known if ends is None else min(ends, at.step + known)

    @property
    def interrupted(self) -> bool:
        """Whether the workers agreed to stop because they were asked to from outside."""
        return self.ledger.stopping == "interrupted"

    def works(self, epoch: int | None = None) -> Iterator[Work]:
        """Yield this worker's part of each global batch, from the cursor to the end of the run, or of `epoch`.

        Each must be given to `step` before the next is taken.
        """
        self._do_due()
        while not self.done and (epoch is None or self.cursor.epoch == epoch):
            yield self._take()

    def _take(self) -> Work:
        """This worker's part of the next global batch."""
        if self.config.elastic.pace_s:  # a drill has asked for time to hurt a short run
            time.sleep(self.config.elastic.pace_s)
        self._tell_lost_servers()
        self._account.start()
        self._enter("data")
        stretch, leases = self._stretch(), self._strategy.needs.leases
        with self._spans("data"):
            passes = [] if leases else self._feed.take(self.cursor)
        stop, change = self._wishes()
        self._work = Work(
            batch=stretch[0][0],
            passes=passes,
            learning_rates=stretch[0][1],
            stop=stop,
            change=change,
            data_s=self._spans.recent("data"),
            stretch=stretch,
            stream=self._feed.stream if leases else None,
            wishes=self._wishes,
            save=self._snapshot_due(),
            probe=self._probe if self._probes else None,
        )
        self._probes = False  # should the view break, models may not be the same when this is done again
        return self._work

    def _stretch(self) -> Stretch:
        """The global batches of the next act, with their learning rates: as many as the strategy can do in one, but
        none beyond the next evaluation, save, end of an epoch or of the run."""
        start, batches = self.cursor, self._batches
        most = min(self._strategy.reach(self._replica), batches.per_epoch - start.batch)
        if self.total_steps is not None:
            most = min(most, self.total_steps - start.step)
        # something is due within so many batches, or nothing is
        due = bisect_left(range(1, most), True, key=lambda n: bool(self._due_after(start, batches.ahead(start, n))))
        return Stretch(batches, self._rates.at, start, due + 1)

    @property
    def _snapshots(self) -> bool:
        """Whether checkpoints are all that is left when a server dies."""
        once = self.config.server.replicas == 1 and self.config.checkpoint.every != "never"
        return once and self._strategy.needs.servers and self.total_steps is not None

    def _snapshot_due(self) -> bool:
        """Whether the first worker finds that the last checkpoint was too long ago."""
        if not self._place.is_first or not self._snapshots:
            return False
        return time.perf_counter() - self._saved_at > self.config.server.snapshot_s

    def _wishes(self) -> tuple[bool, bool]:
        """Whether this worker was asked to stop, and whether it knows of a change of the membership."""
        with self._spans("membership"):
            change = self._survives and self._attendance.change_wanted(self._place.view)
        return self._session.control.stop_requested or self._scribe.wish is not None, change

    # ---- a step

    def step(self, work: Work) -> float:
        """Train on `work` and commit it; evaluate and save where that is due. Returns the loss of the global batch."""
        if work is not self._work:  # it was handed out in an earlier view
            self._work = None
        done = self._act(self._step, undo=lambda: self._strategy.discard(self._replica))
        if done["change"] and done["view"] == self._place.view.number and not done["stop"]:
            self._leave_view()
        self._do_due()
        for event in self._saver.poll():
            self._scribe(event)
        self._scribe.listen()
        return float(done["loss"])

    def _step(self) -> Result:
        work = self._work if self._work is not None else self._take()
        try:
            result = self._strategy.step(self._replica, work)
        except NonFiniteLoss as error:
            elsewhere = self._place.world.rank not in error.ranks
            bad_data = "" if elsewhere else self._feed.bad_data()
            raise NonFiniteLoss(error.step, error.ranks, self._last_good(), bad_data, elsewhere=elsewhere) from None
        self._work = None
        compare_losses(result.probed, self._place.view)
        with self._spans("bookkeeping"):
            self._commit(work, result)
        return {"loss": result.loss, "stop": result.stop, "change": result.change, "view": self._place.view.number}

    def _commit(self, work: Work, result: StepResult) -> None:
        """The step is part of the model: move the cursor, record the samples, say what is due, tell."""
        before, ledger = self.cursor, self.ledger
        done = len(work.stretch) if result.batches is None else result.batches
        self._coverage.commit(
            result.committed, result.spans, lambda start, stop: self._order(before, start, stop),
            self._spec.train.readable,
        )  # fmt: skip
        batch, _ = work.stretch[done - 1]
        last = batch.cursor
        ledger.cursor = self._batches.after(last)
        ledger.staleness = ledger.staleness.after(result.staleness, result.lead)
        if before.batch == 0:
            self._account.new_epoch()
        samples = self.cursor.samples - before.samples
        seconds = self._account.step(result.loss_sum, result.loss_weight, samples, result.bytes_sent)
        if self.cursor.epoch != before.epoch:
            self._coverage.finish_epoch(self._place.group)
        due = self._due_after(last, self.cursor)
        if result.save and "save" not in due:
            due.append("save")
        ledger.due = [*due, *(["reason"] if result.stop else [])]
        if self._growing is not None and self.cursor.batch == 0:
            # its files are done with, and may go
            ledger.arrivals = ledger.arrivals.closed()
            self._cut_instalment(self._growing, ledger.arrivals)
            if not self.done:
                ledger.due.append("arrivals")
        self._session.control.step_done(self._place.me.seat)
        self._scribe(
            StepCommitted(
                self.cursor, result.loss, samples, work.learning_rates, seconds, result.timings, result.staleness,
                result.lead, self._account.train_loss,
            )
        )  # fmt: skip
        if result.codec is not None:
            one = result.codec
            self._scribe(CodecChosen(before.step, one.name, one.reason, dict(one.predicted_s)))
        if result.size is not None:
            wish = result.size
            self._scribe(SizeWished(self.cursor.step, self._place.view.size, wish.workers, wish.reason))
            if self._place.keeps_record:
                self._session.report(size_message(wish))
        for words in self._spec.train.complaints():
            self._scribe(Warned(words))
        self._rebalance(batch, result)
        if self._seen_view != self._place.view.number:
            self._seen_view = self._place.view.number
            if self._place.is_first:
                self._session.report({"type": "resumed", "view": self._seen_view, "step": self.cursor.step})
        self._spans.take()

    def _rebalance(self, batch: GlobalBatch, result: StepResult) -> None:
        """Let the shares of the next step follow what this one has shown. All workers are shown the same."""
        change = self._balancing.observe(batch, result)
        if change is not None:
            self._scribe(change)
            if not self.done:
                self._feed.reshare(change.weights, self.cursor)

    def _order(self, at: Cursor, start: int, stop: int) -> Indices:
        """The samples at these positions of the epoch of `at`."""
        return self._samples_order.at(at.epoch, start, stop)

    def _due_after(self, before: Cursor, after: Cursor) -> list[str]:
        """What is to be done once the batch at `before` is committed."""
        per_epoch, due = self._batches.per_epoch, []
        evaluate_every, save_every = self.config.eval_every, self.config.checkpoint.every
        tested = self._spec.test is not None and not evaluated_elsewhere(self.config, self._session)
        if tested and isinstance(evaluate_every, Length) and evaluate_every.due(before, after, per_epoch):
            due.append("evaluate")
        if isinstance(save_every, Length) and save_every.due(before, after, per_epoch):
            due.append("save")
        return due

    def _do_due(self) -> None:
        """Do what is left to do after the last step, whether this worker took that step or joined after it."""
        acts: dict[str, Callable[[], object]] = {
            "evaluate": self.evaluate,
            "save": self.save,
            "reason": self._agree_to_stop,
            "arrivals": self._await_files,
        }
        while self.ledger.due:
            acts[self.ledger.due[0]]()

    def _no_longer_due(self, what: str) -> None:
        if self.ledger.due[:1] == [what]:
            del self.ledger.due[0]

    # ---- data that grows

    def _expect_files(self) -> None:
        """A run begins or goes on: look for files, unless it is in the middle of an epoch. Where nothing more had come
        when it ended, something may have come since."""
        arrivals = self.ledger.arrivals
        if self._growing is None or (arrivals.epoch == self.cursor.epoch and not arrivals.over):
            return
        self.ledger.arrivals = arrivals.closed()
        if not self.done:
            self.ledger.due.append("arrivals")

    def _await_files(self) -> None:
        """An epoch is to begin: agree on its files, as soon as there are some, or on that there will be none."""
        assert self._growing is not None
        if self.done:
            self._no_longer_due("arrivals")
            return
        agreed = self._act(functools.partial(self._agree_on_files, self._growing))
        if agreed["change"] and agreed["view"] == self._place.view.number and not agreed["stop"]:
            self._leave_view()

    def _agree_on_files(self, growing: FollowingSource) -> Result:
        self._enter("data")
        place, ledger = self._place, self.ledger
        tick = functools.partial(self._session.control.tick, place.me.seat)
        agreed = agree(growing, ledger.arrivals, self.cursor.epoch, place.group, self._wishes, tick)
        if agreed.found is not None:
            samples = count(growing, agreed.found, place.group)
            if samples or agreed.found.over:
                self._begin(growing, agreed.found)
                self._no_longer_due("arrivals")
                names = tuple(file.name for file in agreed.found.files)
                self._scribe(FilesArrived(agreed.found.epoch, names, samples, agreed.found.over))
            else:  # files without samples are passed over
                ledger.arrivals = replace(ledger.arrivals, seen=agreed.found.known)
        if agreed.stop and "reason" not in ledger.due:
            ledger.due.insert(0, "reason")
        return {"stop": agreed.stop, "change": agreed.change, "view": place.view.number}

    def _begin(self, growing: FollowingSource, instalment: Instalment) -> None:
        """Train on `instalment` from now on: cut its samples, and count how often they are used."""
        self._feed.close()
        self._cut_instalment(growing, instalment)
        self.ledger.arrivals = instalment
        self._new_feed()

    def _cut_instalment(self, growing: FollowingSource, instalment: Instalment) -> None:
        growing.take(instalment)
        self._cut()
        self._coverage.begin(len(growing))
        self._balancing.cut(self._batches)
        self._rates = Rates(self._spec.schedule, self._initial_rates, self._batches.per_epoch)

    # ---- evaluation and saving

    def evaluate(self, source: Source | None = None) -> dict[str, float]:
        """Evaluate on the test data, or on `source`, all workers together. Empty where there is none."""
        source = source.under(self.config.loader) if source is not None else self._spec.test
        if source is None:
            return {}
        return dict(self._act(lambda: self._evaluate(source)))

    def _evaluate(self, source: Source) -> Result:
        begin = time.perf_counter()
        self._enter("evaluate")
        config, place = self.config, self._place
        batch = AUTO_BATCH if config.eval_batch == "auto" else config.eval_batch
        with self._spans("evaluate"):
            values = evaluate(
                self._strategy, self._replica, source, batch, ["loss", *self._spec.program.metrics], place.group,
                self._balancing.weights, lambda: self._session.control.tick(place.me.seat),
            )  # fmt: skip
        self._scribe(Evaluated(self.cursor, values, time.perf_counter() - begin))
        wishes = place.group.gather_bytes((self._scribe.wish or "").encode(), "asking whether to stop")
        ledger = self.ledger
        ledger.values, ledger.evaluated = values, self.cursor
        ledger.stopping = ledger.stopping or next((wish.decode() for wish in wishes if wish), "")
        self._no_longer_due("evaluate")
        return values

    def save(self) -> None:
        """Begin to save a checkpoint at the cursor."""
        self._act(self._save)

    def _save(self) -> Result:
        self._enter("save")
        with self._spans("save"):
            try:
                self._saver.save(
                    self._strategy, self._replica, self._place.group, self._coverage, self._account, self.ledger
                )
            except NonFiniteState as error:
                raise NonFiniteState(error.step, error.name, self._last_good()) from None
        self.ledger.saved, self._saved_at = self.cursor, time.perf_counter()
        self._no_longer_due("save")
        return None

    def _last_good(self) -> str:
        """Where the last checkpoint is, in words, the same on every worker. Collective."""
        with contextlib.suppress(ShoalError):
            for event in self._saver.flush():
                self._scribe(event)
        where = self._saver.last_path
        words = f"The last good checkpoint is {where}" if where else "There is no checkpoint yet"
        with contextlib.suppress(ShoalError):
            words = self._place.group.gather_bytes(words.encode(), "naming the last checkpoint")[0].decode()
        return words

    def ask(self, step: int, number: int, what: str, do: Callable[[], Result]) -> Result:
        """The user's own loop asks for something, as its request `number` at `step`. What the others have behind them
        is answered as it was for them."""
        answered = self.ledger.answer(step, number)
        if answered is not None and answered[0] == what:
            return answered[1]
        result = do()
        if self.ledger.answer(step, number) is None:  # else the state of another worker has it already
            self.ledger.asked.append((step, what, result))
        return result

    # ---- stopping

    def _agree_to_stop(self) -> None:
        self._act(self._reason)

    def _reason(self) -> Result:
        """Why the run stops: the first worker's reason, if it has one, else that it was asked to."""
        asked = "interrupted" if self._session.control.stop_requested else ""
        mine = (self._scribe.wish or asked).encode()
        words = [word.decode() for word in self._place.group.gather_bytes(mine, "agreeing why to stop")]
        # who wished it may be lost: then nobody does any more
        self.ledger.stopping = next((word for word in words if word), "")
        self._no_longer_due("reason")
        return None

    def finish(self) -> dict[str, Any]:
        """Save what is not saved, evaluate what is not evaluated, write the summary, give everything back."""
        with self._closing:
            result = None
            while result is None:
                result = self._finish()
            self._enter("save")
            self._follow_mirror(_INTERRUPTED_S if self.interrupted else self.config.checkpoint.mirror_wait_s)
            if at_risk := result.get("staleness", {}).get("warning"):
                self._scribe(Warned(at_risk))
            self._scribe(RunEnded(str(result["status"]), self.cursor, self.ledger.stopping, result))
            self._enter("end")
            self._attendance.finish(self._number)
        return result

    def _follow_mirror(self, deadline_s: float) -> None:
        """The last checkpoint is on disk: see it into the mirror."""
        tick = functools.partial(self._session.control.tick, self._place.me.seat)
        for event in self._saver.follow_mirror(deadline_s, tick):
            self._scribe(event)

    def _finish(self) -> dict[str, Any] | None:
        """Do the next of what is left to do at the end; the summary comes last. Whatever view this is, all its members
        find the same in their ledgers, wherever they were when the one before broke."""
        if self._went_back and not self.done:  # servers have lost the last steps: they are taken again
            for work in self.works():
                self.step(work)
            return None
        evaluates = self.config.eval_every != "never" and not self.interrupted
        test = self._spec.test
        if evaluates and test is not None and self.ledger.evaluated != self.cursor:
            self._act(lambda: self._evaluate(test), once=True)
            return None
        if self.ledger.saved != self.cursor and self.config.checkpoint.every != "never":
            self._act(self._save, once=True)
            return None
        for event in self._saver.flush():
            self._scribe(event)
        self._tell_lost_servers()
        self._scribe.listen(at_once=True)
        result = self._act(self._summarise, once=True)
        return dict(result) if result is not None else None

    def conclude(self) -> dict[str, Any] | None:
        """Where this run was complete before it was started again: end it as it is and give its summary, else None."""
        stored = self._stored
        if not self.done or stored is None or stored.get("status") != "completed":
            return None
        if stored.get("steps") != self.cursor.step:  # of a shorter run: this one was cut off before it had its own
            return None
        with self._closing:
            self._scribe(RunEnded("completed", self.cursor, "it was complete already", stored))
            self._attendance.finish(self._number)
        return stored

    def fail(self, error: BaseException) -> None:
        """The run ends by `error`: say so where it is looked for, keep what is complete, give everything back."""
        with self._closing:
            if not self._place.keeps_record:
                return
            at_once = isinstance(error, KeyboardInterrupt | SystemExit)
            with contextlib.suppress(ShoalError, OSError):
                for event in self._saver.flush(deadline_s=1.0 if at_once else 30.0):
                    self._scribe(event)
                self._follow_mirror(0.0 if at_once else _INTERRUPTED_S)
            ended = ("interrupted", "ended at once") if at_once else ("failed", _in_one_line(error))
            again = error.again if isinstance(error, ShoalError) else True
            with contextlib.suppress(ShoalError, OSError):
                self._scribe(RunEnded(ended[0], self.cursor, ended[1], again=again))

    def _summarise(self) -> Result:
        status = "interrupted" if self.interrupted else "stopped" if self.ledger.stopping else "completed"
        read = self._spec.train.bytes_read
        facts = {"bytes": self._account.bytes_sent, "memory": peak_memory_bytes(), "read": read}
        words = self._place.group.gather_bytes(json.dumps(facts).encode(), "adding up the run")
        everyone = [json.loads(word) for word in words]
        mine = summary(
            strategy=self._strategy.name,
            workers=self._place.group.size,
            servers=servers_of(self.config, self._strategy),
            cursor=self.cursor,
            account=self._account,
            values=self.ledger.values,
            module=self._spec.program.model,
            status=status,
            coverage=self._coverage.judge(self.cursor.batch * self._batches.global_batch, self._place.group),
            bytes_sent=sum(one["bytes"] for one in everyone),
            peak_memory=max(one["memory"] for one in everyone),
            bytes_read=sum(one["read"] for one in everyone),
            spans=self._spans.totals,
            seconds=time.perf_counter() - self._began,
            faults=self._opened.run_dir.faults(),  # of this run before it went on
            staleness=self.ledger.staleness,
            aging=self._strategy.aging(self._replica),
        )
        if self._place.keeps_record:  # before anyone can take this act for done
            self._opened.run_dir.write_summary(mine)
        word = json.dumps(mine).encode() if self._place.is_first else b""
        return json.loads(self._place.group.gather_bytes(word, "agreeing on the summary")[0])

    # ---- small things

    def _standing(self, resumed_from: Path | None = None) -> Standing:
        return Standing(self.cursor, self._account.train_loss, resumed_from)

    def _enter(self, phase: str) -> None:
        self._session.control.enter(self._place.me.seat, self.cursor.step, phase)


@contextlib.contextmanager
def ends_with_the_run(session: Session) -> Iterator[None]:
    """Where the run goes on without this worker, nothing is left to do for its script."""
    try:
        yield
    except RunOver as over:
        session.report(dict(over.to_message()))
        raise SessionEnd from None


def _in_one_line(error: BaseException) -> str:
    """What ended a run, for its log: whoever started the run shows all of it."""
    first = str(error).strip().partition("\n")[0]
    return first if isinstance(error, ShoalError) else f"{type(error).__name__}: {first}".removesuffix(": ")
