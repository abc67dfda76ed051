"""For those who keep a loop of their own: the same run, driven from outside."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from shoal.core.config import resolve
from shoal.core.errors import ConfigError, UserError
from shoal.data.following import FollowingSource
from shoal.data.source import Source, open_source
from shoal.elastic.attendance import FitOver
from shoal.launch.session import Session, SessionEnd, current
from shoal.strategies.base import Strategy, Work
from shoal.strategies.objective import LossFunction, make_objective
from shoal.strategies.program import Metric, OptimizerFactory, Program
from shoal.strategies.select import choose_strategy, import_plugins, most_workers
from shoal.train.callbacks import Callback, default_callbacks
from shoal.train.dry_run import print_dry_run
from shoal.train.following import check_evaluator
from shoal.train.interrupts import graceful, leave
from shoal.train.metrics import with_defaults
from shoal.train.result import Result
from shoal.train.run import Run
from shoal.train.schedules import Schedule, TorchSchedule
from shoal.train.spec import RunSpec


def prepare(
    model: nn.Module,
    optimizer: OptimizerFactory | torch.optim.Optimizer,
    loss: nn.Module | LossFunction,
    *,
    metrics: Mapping[str, Metric] | None = None,
    schedule: Schedule | TorchSchedule | None = None,
    callbacks: Sequence[Callback] = (),
    strategy: str | Strategy[Any] | None = None,
    **settings: Any,
) -> PreparedRun:
    """Make a run that your own loop drives::

        run = shoal.prepare(model, optimizer, loss, global_batch=128)
        for epoch in range(10):
            for batch in run.batches(data):
                loss = run.step(batch)

    The parts and settings are those of `Trainer`. The loop runs unchanged under ``shoal train``.
    """
    session = current()
    chosen = strategy.name if isinstance(strategy, Strategy) else strategy
    layers = [("prepare(...)", {**settings, "strategy": chosen}), *session.layers]
    if session.launched and session.mode == "train":
        layers.append(("the launcher", {"workers": session.workers or session.world.size}))
    config = resolve(*layers)
    if not session.launched and config.workers > 1:
        raise ConfigError(
            f"workers={config.workers}: a loop of your own is distributed by `shoal train SCRIPT --workers "
            f"{config.workers}`, not from within"
        )
    program = Program(model, make_objective(loss), optimizer, with_defaults(loss, metrics))
    import_plugins(config.server.plugins)
    own = strategy if isinstance(strategy, Strategy) and strategy.name == config.strategy else None
    used = own or choose_strategy(config.strategy, most_workers(config), config.hybrid, config.server)

    given = tuple(callbacks) if isinstance(callbacks, Sequence) else (callbacks,)

    def make_spec(train: Source) -> RunSpec:
        if isinstance(train, FollowingSource):
            raise ConfigError(f"the data follows {train.place}: a loop of your own cannot, use shoal.Trainer")
        return RunSpec(
            config=config,
            program=program,
            strategy=used,
            train=train,
            schedule=schedule,
            callbacks=(*given, *default_callbacks(config)),
        )

    return PreparedRun(make_spec, session)


class PreparedRun:
    """A run whose steps you take yourself. It begins with the first call of `batches`, which says on what data, and
    ends with `finish`, with the end of its ``with`` block, or with the script."""

    def __init__(self, make_spec: Callable[[Source], RunSpec], session: Session) -> None:
        self._make_spec, self._session = make_spec, session
        self._run: Run | None = None
        self._data: object = None
        self._test: tuple[object, Source] | None = None  # what was evaluated last: opening a stream reads all of it
        self._epochs = 0  # that the caller has asked for
        self._position = 0  # the step at which the caller's loop is: behind the run's, until it has caught up
        self._asked = 0  # what the loop has asked for at this position
        self._result: Result | None = None
        self._signals = contextlib.ExitStack()

    def batches(self, data: object) -> Iterator[Work]:
        """Yield this worker's part of each global batch of one epoch. The first call is epoch 0, and so on; where a
        run goes on after an interruption, what it has behind it is passed over."""
        run = self._begin(data)
        epoch, self._epochs = self._epochs, self._epochs + 1
        if run.cursor.epoch <= epoch:
            for work in run.works(epoch):
                self._be_at(run.cursor.step)
                yield work
        self._be_at(min((epoch + 1) * run.steps_per_epoch, run.cursor.step))
        if run.interrupted:
            self.finish()
            leave(self._session)

    def step(self, batch: Work) -> float:
        """Train on what `batches` gave: forward, backward, synchronise, update. Returns the loss of the global
        batch, which is the same on every worker."""
        run = self._running()
        try:
            loss = run.step(batch)
        except BaseException as error:
            self._fail(error)
            raise
        self._be_at(run.cursor.step)
        return loss

    def evaluate(self, data: object) -> dict[str, float]:
        """The loss and metrics on `data`, over all workers, exact for any number of them."""
        run = self._running()
        if self._test is None or self._test[0] is not data:
            self._test = data, open_source(data, "test")
        source = self._test[1]
        return dict(self._ask("evaluate", lambda: run.evaluate(source)))

    def save(self) -> None:
        """Write a checkpoint here, besides those that the settings ask for."""
        self._ask("save", self._running().save)

    def finish(self) -> Result:
        """End the run: save, write the summary. Called again, it gives the same result."""
        if self._result is None:
            run = self._running()
            summary = run.finish()
            self._run = None
            self._signals.close()
            self._session.report({"type": "finished", "summary": summary})
            self._result = Result(summary, Path(run.config.run_dir or "."))
        return self._result

    def __enter__(self) -> PreparedRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._finish_if_open()
        else:
            self._fail(error)

    def _be_at(self, step: int) -> None:
        if step != self._position:
            self._position, self._asked = step, 0

    def _ask(self, what: str, do: Callable[[], Any]) -> Any:
        """Have the run do something, unless the others did it before this worker came."""
        number, self._asked = self._asked, self._asked + 1
        return self._running().ask(self._position, number, what, do)

    def _begin(self, data: object) -> Run:
        if self._run is None:
            if self._result is not None:
                raise UserError("this run is finished: prepare another one")
            spec = self._make_spec(open_source(data, "train"))
            check_evaluator(spec, self._session)
            number = self._session.next_fit()
            if self._session.mode == "dry-run":
                if self._session.world.is_first:
                    print_dry_run(spec, self._session.json_output)
                raise SessionEnd
            self._data = data
            self._signals.enter_context(graceful(self._session))
            try:
                self._run = Run(spec, self._session, number)
            except FitOver:  # what follows in the script needs a model that only the others have
                self._session.report({"type": "released"})
                raise SessionEnd from None
            self._session.at_end(self._finish_if_open)
            if not self._session.launched:
                atexit.register(self._at_exit)
        elif data is not self._data:
            raise UserError("a prepared run trains on one data set: give batches() the same object in every epoch")
        return self._run

    def _running(self) -> Run:
        if self._run is None:
            raise UserError("the run has not begun or is finished: call batches(data) first")
        return self._run

    def _fail(self, error: BaseException) -> None:
        self._signals.close()
        if self._run is not None:
            run, self._run = self._run, None
            if not isinstance(error, SessionEnd):  # this worker's part is over, the run is not
                run.fail(error)

    def _finish_if_open(self) -> None:
        if self._run is not None:
            self.finish()

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        self.__exit__(type(error) if error is not None else None, error, None)
