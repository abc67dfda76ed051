"""A run on one worker: the cursor moves by steps, each a transaction; around it evaluation, checkpoints, events.

This is what `Trainer.fit` and `prepare` drive. It never asks which strategy it has.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import torch

from shoal.core.cursor import Batches, Cursor
from shoal.core.errors import NonFiniteLoss, NonFiniteState, ShoalError
from shoal.core.events import Evaluated, Event, RunEnded, StepCommitted
from shoal.core.length import Length
from shoal.core.spans import Spans
from shoal.data.source import Source
from shoal.launch.session import Session
from shoal.strategies.base import Runtime, StepResult, Work
from shoal.train.announce import Announcer
from shoal.train.evaluate import AUTO_BATCH, evaluate
from shoal.train.feed import Feed
from shoal.train.opening import claim, open_run
from shoal.train.rates import Rates
from shoal.train.record import Account, peak_memory_bytes, summary
from shoal.train.saving import CoverageRecord, Saver
from shoal.train.spec import RunSpec
from shoal.train.starting import opening_events, run_info


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
            self._set_threads(spec.config.threads)
            self._opened = open_run(spec, session, number, self._closing)
            self.config, self._group = self._opened.config, self._opened.group
            self._batches = Batches(len(spec.train), self.config.global_batch, self.config.grain)  # type: ignore[arg-type]  # settled by open_run
            self._spans = Spans()
            self._account = Account()
            self._coverage = CoverageRecord(len(spec.train), self._group)
            self._replica = self._bind()
            initial = self._strategy.initial_learning_rates(self._replica)
            self._rates = Rates(spec.schedule, initial, self._batches.per_epoch)
            claim(self._opened, session, self._closing)
            self._saver = Saver(self._opened.run_dir.checkpoints, self.config.checkpoint, self._group)
            self._closing.callback(self._saver.close)
            self._values: dict[str, float] = {}  # of the latest evaluation
            self._evaluated: Cursor | None = None
            self.cursor = Cursor()
            self._stopping = ""
            self._announcer = self._resume()
            self._feed = Feed(spec, self._opened, self._batches, self.cursor, self.total_steps)
            self._closing.callback(self._feed.close)
            undo.pop_all()

    # ---- opening

    def _set_threads(self, threads: int) -> None:
        """The number of threads decides the order of sums within an operation, so it is a setting of the run."""
        self._closing.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)

    def _bind(self) -> Any:
        config = self.config
        runtime = Runtime(
            world=self._opened.world,
            view=self._opened.view,
            group=self._group,
            control=self._session.control,
            seed=config.seed,
            clip=config.clip,
            precision=config.precision,
            exact_sums=config.sums == "float64" or (config.sums == "auto" and not self._opened.cutting.merged),
            layout=config.layout,
            bucket_bytes=int(config.comm.bucket_mib * (1 << 20)),
            spans=self._spans,
        )
        replica = self._strategy.bind(self._spec.program, runtime)
        self._closing.callback(self._strategy.close, replica)
        return replica

    def _resume(self) -> Announcer | None:
        """Go on from the newest good checkpoint, if there is one, and tell how the run begins (first worker)."""
        warnings: list[str] = []
        resumed = self._saver.resume(self._strategy, self._replica, self._coverage, self._account, warnings.append)
        if resumed is not None:
            self.cursor = resumed.cursor
            self._values = resumed.values
            self._evaluated = self.cursor if resumed.evaluated else None
        if not self._session.world.is_first:
            return None
        info = run_info(self._spec, self._opened, self._session, self._batches, self.total_steps)
        announcer = Announcer(self._opened.run_dir, self._spec.callbacks, info)
        path = resumed.path if resumed is not None else None
        for event in opening_events(info, self._opened, self._batches, self.cursor, path, warnings):
            announcer(event)
        return announcer

    # ---- what comes next

    @property
    def total_steps(self) -> int | None:
        """The length of the run in steps; None where the user's own loop decides."""
        if self.config.steps is not None:
            return self.config.steps
        return self.config.epochs * self._batches.per_epoch if self.config.epochs is not None else None

    @property
    def done(self) -> bool:
        return bool(self._stopping) or (self.total_steps is not None and self.cursor.step >= self.total_steps)

    @property
    def interrupted(self) -> bool:
        """Whether the workers agreed to stop because they were asked to from outside."""
        return self._stopping == "interrupted"

    def works(self, epoch: int | None = None) -> Iterator[Work]:
        """Yield this worker's part of each global batch, from the cursor to the end of the run, or of `epoch`.

        Each must be given to `step` before the next is taken.
        """
        while not self.done and (epoch is None or self.cursor.epoch == epoch):
            self._account.start()
            self._enter("data")
            with self._spans("data"):
                passes = self._feed.take(self.cursor)
            yield Work(
                batch=self._batches.at(self.cursor),
                passes=passes,
                learning_rates=self._rates.at(self.cursor),
                stop=self._session.control.stop_requested or self._wishes_to_stop() is not None,
                data_s=self._spans.recent("data"),
            )

    # ---- a step

    def step(self, work: Work) -> float:
        """Train on `work` and commit it; evaluate and save where that is due. Returns the loss of the global batch."""
        try:
            result = self._strategy.step(self._replica, work)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(error.step, error.ranks, self._last_good()) from None
        with self._spans("bookkeeping"):
            before = self.cursor
            self._commit(work, result)
        self._after_step(before)
        if result.stop:
            self._stopping = self._agreed_reason()
        return result.loss

    def _commit(self, work: Work, result: StepResult) -> None:
        """The step is part of the model: move the cursor, record the samples, tell."""
        before = self.cursor
        self._coverage.commit(result.committed)
        self.cursor = self._batches.after(before)
        if before.batch == 0:
            self._account.new_epoch()
        samples = work.batch.samples
        seconds = self._account.step(result.loss_sum, result.loss_weight, samples, result.bytes_sent)
        if self.cursor.epoch != before.epoch:
            self._coverage.finish_epoch()
        self._announce(StepCommitted(self.cursor, result.loss, samples, work.learning_rates, seconds, result.timings))
        self._spans.take()

    def _after_step(self, before: Cursor) -> None:
        per_epoch = self._batches.per_epoch
        every = self.config.eval_every
        if isinstance(every, Length) and every.due(before, self.cursor, per_epoch):
            self.evaluate()
        every = self.config.checkpoint.every
        if isinstance(every, Length) and every.due(before, self.cursor, per_epoch):
            self.save()
        for event in self._saver.poll():
            self._announce(event)

    def evaluate(self, source: Source | None = None) -> dict[str, float]:
        """Evaluate on the test data, or on `source`, all workers together. Empty where there is none."""
        source = source if source is not None else self._spec.test
        if source is None:
            return {}
        begin = time.perf_counter()
        self._enter("evaluate")
        batch = AUTO_BATCH if self.config.eval_batch == "auto" else self.config.eval_batch
        with self._spans("evaluate"):
            self._values = evaluate(
                self._strategy, self._replica, source, batch, ["loss", *self._spec.program.metrics], self._group,
                self.config.share_weights,
            )  # fmt: skip
        self._evaluated = self.cursor
        self._announce(Evaluated(self.cursor, self._values, time.perf_counter() - begin))
        wishes = self._group.gather_bytes(b"1" if self._wishes_to_stop() else b"", "asking whether to stop")
        if any(wishes):
            self._stopping = self._agreed_reason()
        return self._values

    def save(self) -> None:
        """Begin to save a checkpoint at the cursor."""
        self._enter("save")
        with self._spans("save"):
            evaluated = self._evaluated == self.cursor
            try:
                self._saver.save(
                    self._strategy, self._replica, self.cursor, self._coverage, self._account, self._values, evaluated
                )
            except NonFiniteState as error:
                raise NonFiniteState(error.step, error.name, self._last_good()) from None

    def _last_good(self) -> str:
        """Where the last checkpoint is, in words, the same on every worker. Collective."""
        with contextlib.suppress(ShoalError):
            for event in self._saver.flush():
                self._announce(event)
        where = self._saver.last_path
        words = f"The last good checkpoint is {where}" if where else "There is no checkpoint yet"
        with contextlib.suppress(ShoalError):
            words = self._group.gather_bytes(words.encode(), "naming the last checkpoint")[0].decode()
        return words

    # ---- stopping

    def _wishes_to_stop(self) -> str | None:
        if self._announcer is not None and self._announcer.stop is not None:
            return self._announcer.stop.reason
        return None

    def _agreed_reason(self) -> str:
        """Why the run stops: the first worker's reason, if it has one, else that it was asked to."""
        mine = (self._wishes_to_stop() or "").encode()
        first = self._group.gather_bytes(mine, "agreeing why to stop")[0].decode()
        return first or "interrupted"

    def finish(self) -> dict[str, Any]:
        """Save what is not saved, evaluate what is not evaluated, write the summary, give everything back."""
        with self._closing:
            status = "interrupted" if self.interrupted else "stopped" if self._stopping else "completed"
            if not self.interrupted and self._evaluated != self.cursor and self.config.eval_every != "never":
                self.evaluate()
            if self._saver.last_saved != self.cursor and self.config.checkpoint.every != "never":
                self.save()
            for event in self._saver.flush():
                self._announce(event)
            result = self._summarise(status)
            if self._announcer is not None:
                self._opened.run_dir.write_summary(result)
            self._announce(RunEnded(status, self.cursor, self._stopping, result))
            self._enter("end")
        return result

    def conclude(self) -> dict[str, Any] | None:
        """Where this run was complete before it was started again: end it as it is and give its summary, else None."""
        stored = self._opened.run_dir.summary()
        if not self.done or stored is None or stored.get("status") != "completed":
            return None
        with self._closing:
            self._announce(RunEnded("completed", self.cursor, "it was complete already", stored))
        return stored

    def fail(self, error: BaseException) -> None:
        """The run ends by `error`: say so where it is looked for, keep what is complete, give everything back."""
        with self._closing:
            if self._announcer is None:
                return
            at_once = isinstance(error, KeyboardInterrupt | SystemExit)
            with contextlib.suppress(ShoalError, OSError):
                for event in self._saver.flush(deadline_s=1.0 if at_once else 30.0):
                    self._announce(event)
            ended = ("interrupted", "ended at once") if at_once else ("failed", _in_one_line(error))
            with contextlib.suppress(ShoalError, OSError):
                self._announce(RunEnded(ended[0], self.cursor, ended[1]))

    def _summarise(self, status: str) -> dict[str, Any]:
        facts = {"bytes": self._account.bytes_sent, "memory": peak_memory_bytes()}
        everyone = [
            json.loads(word) for word in self._group.gather_bytes(json.dumps(facts).encode(), "adding up the run")
        ]
        return summary(
            strategy=self._strategy.name,
            workers=self._group.size,
            cursor=self.cursor,
            account=self._account,
            values=self._values,
            module=self._spec.program.model,
            status=status,
            coverage=self._coverage.judge(self.cursor.batch * self._batches.global_batch),
            bytes_sent=sum(one["bytes"] for one in everyone),
            peak_memory=max(one["memory"] for one in everyone),
            spans=self._spans.totals,
            seconds=time.perf_counter() - self._began,
            faults=(self._opened.run_dir.summary() or {}).get("faults", []),  # of this run before it went on
        )

    # ---- small things

    def _announce(self, event: Event) -> None:
        if self._announcer is not None:
            self._announcer(event)

    def _enter(self, phase: str) -> None:
        self._session.control.enter(self._session.world.rank, self.cursor.step, phase)


def _in_one_line(error: BaseException) -> str:
    """What ended a run, for its log: whoever started the run shows all of it."""
    first = str(error).strip().partition("\n")[0]
    return first if isinstance(error, ShoalError) else f"{type(error).__name__}: {first}".removesuffix(": ")
