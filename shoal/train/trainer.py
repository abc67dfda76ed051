"""The front door: a Trainer is a program with its data and settings; `fit()` trains it, here or on N workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shoal.core.config import Config, resolve
from shoal.core.errors import ConfigError, WorkerFailed
from shoal.core.seeds import init_seed
from shoal.data.following import FollowingSource
from shoal.data.source import open_source
from shoal.elastic.attendance import FitOver
from shoal.launch.session import Session, SessionEnd, current
from shoal.strategies.base import Strategy
from shoal.strategies.objective import LossFunction, make_objective
from shoal.strategies.program import Metric, OptimizerFactory, Program
from shoal.strategies.select import choose_strategy, import_plugins, most_workers
from shoal.train.callbacks import Callback, default_callbacks
from shoal.train.dry_run import print_dry_run
from shoal.train.following import check_evaluator, follow
from shoal.train.interrupts import graceful, leave
from shoal.train.metrics import with_defaults
from shoal.train.passing import pass_over
from shoal.train.result import Result
from shoal.train.run import Run, ends_with_the_run
from shoal.train.schedules import Schedule, TorchSchedule
from shoal.train.spec import RunSpec


class Trainer:
    """Trains `model` on `train`, evaluating on `test`.

    `model` is a module, or a function that builds one (it is then built under the run's seed). `loss` is a loss
    module, called as ``loss(model(*inputs), target)``, or a function ``(model, batch) -> loss`` that returns the mean
    over the samples of the batch, or a pair (sum, weight) where the mean is over something else. `optimizer` is a
    function from parameters to an optimizer. `train` and `test` are whatever `shoal.data.open_source`
    takes: datasets, streams, tables, tuples of tensors.

    `settings` are those of `Config`: ``global_batch``, ``epochs`` or ``steps``, ``seed``, ``clip``, ``precision`` ….
    What the command line or a configuration file states wins over them.
    """

    def __init__(  # noqa: PLR0913 - a program has as many parts
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: nn.Module | LossFunction,
        optimizer: OptimizerFactory | torch.optim.Optimizer,
        train: object,
        test: object = None,
        *,
        metrics: Mapping[str, Metric] | None = None,
        schedule: Schedule | TorchSchedule | None = None,
        callbacks: Sequence[Callback] = (),
        strategy: str | Strategy[Any] | None = None,
        **settings: Any,
    ) -> None:
        self._strategy = strategy if isinstance(strategy, Strategy) else None
        named = strategy.name if isinstance(strategy, Strategy) else strategy
        self._settings: dict[str, Any] = {**settings, "strategy": named}
        self.config = self._resolve(current(), {})
        self.model = _build(model, self.config.seed)
        self._optimizer = optimizer
        self._objective = make_objective(loss)
        self._metrics = with_defaults(loss, metrics)
        self._train = open_source(train, "train")
        self._test = open_source(test, "test") if test is not None else None
        self._schedule = schedule
        self._callbacks = tuple(callbacks) if isinstance(callbacks, Sequence) else (callbacks,)

    def fit(self, workers: int | None = None, run_dir: str | Path | None = None) -> Result:
        """Train to the end, or go on with the run in `run_dir`. Under ``shoal train`` this process is one of the
        workers already and `workers` is what the command says; elsewhere `workers` > 1 starts them."""
        session = current()
        stated = {"workers": workers, "run_dir": str(run_dir) if run_dir is not None else None}
        config = self._resolve(session, stated)
        grows = isinstance(self._train, FollowingSource)  # its end is the end of the run
        if config.epochs is None and config.steps is None and not grows:
            raise ConfigError("the length of the run is missing: give epochs or steps")
        if not session.launched and config.workers > 1:
            return self._fit_on_workers(config, session)
        spec = self._spec(config)
        check_evaluator(spec, session)
        if session.role == "evaluator":
            with ends_with_the_run(session):
                return follow(spec, session)
        if session.mode == "dry-run":
            session.next_fit()
            if session.world.is_first:
                print_dry_run(spec, session.json_output)
            raise SessionEnd
        return train_to_end(spec, session)

    def _resolve(self, session: Session, stated: Mapping[str, Any]) -> Config:
        layers = [("Trainer(...)", self._settings), ("fit(...)", stated), *session.layers]
        if session.launched and session.mode == "train":
            layers.append(("the launcher", {"workers": session.workers or session.world.size}))
        return resolve(*layers)

    def _spec(self, config: Config) -> RunSpec:
        import_plugins(config.server.plugins)
        # a flag or file that names another strategy wins over the object in the script
        own = self._strategy if self._strategy is not None and self._strategy.name == config.strategy else None
        strategy = own or choose_strategy(config.strategy, most_workers(config), config.hybrid, config.server)
        return RunSpec(
            config=config,
            program=Program(self.model, self._objective, self._optimizer, self._metrics),
            strategy=strategy,
            train=self._train,
            test=self._test,
            schedule=self._schedule,
            callbacks=(*self._callbacks, *default_callbacks(config)),
        )

    def _fit_on_workers(self, config: Config, session: Session) -> Result:
        """Send this trainer to new worker processes, and take the trained parameters back."""
        from shoal.checkpoint.catalog import Catalog
        from shoal.checkpoint.model_state import load_model
        from shoal.launch.job import Job
        from shoal.launch.launcher import Launcher
        from shoal.launch.rundir import RunDir

        self._spec(config)  # what is wrong with it should be said here, not in a worker
        job = Job(
            workers=config.workers,
            script=session.script,
            payload=functools.partial(_fit_in_worker, self, config.run_dir),
            layers=session.layers,
            threads=config.threads,
            relay=True,
        )
        outcome = Launcher(job).run()
        if outcome.summary is not None and outcome.summary["status"] == "interrupted":
            leave(session)
        if outcome.summary is None or outcome.run_dir is None or outcome.status != 0:
            raise WorkerFailed({0: outcome.error or "the workers ended without a result"}, outcome.status)
        trained = Catalog(RunDir(Path(outcome.run_dir)).checkpoints).newest_valid(lambda message: None)
        if trained is not None:
            load_model(self.model, {name: piece.tensor for name, piece in trained.state.pieces.items()})
        return Result(outcome.summary, Path(outcome.run_dir))


def train_to_end(spec: RunSpec, session: Session) -> Result:
    """Run a spec in this process, as one of the session's workers."""
    with graceful(session):
        number = session.next_fit()
        try:
            run = Run(spec, session, number)
        except FitOver:
            with ends_with_the_run(session):
                return pass_over(spec, session, number)
        try:
            summary = run.conclude()
            if summary is None:
                for work in run.works():
                    run.step(work)
                summary = run.finish()
        except BaseException as error:
            if not isinstance(error, SessionEnd):
                run.fail(error)
            raise
    session.report({"type": "finished", "summary": summary, "fit": number})
    if summary["status"] == "interrupted":
        leave(session)
    return Result(summary, Path(run.config.run_dir or "."))


def _fit_in_worker(trainer: Trainer, run_dir: str | None) -> None:
    trainer.fit(run_dir=run_dir)


def _build(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    torch.manual_seed(init_seed(seed))
    built = model() if callable(model) else model
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model={model!r}: give an nn.Module, or a function without arguments that builds one")
    return built
