"""An evaluator's `fit()`: it does not train, but follows the checkpoints of those who do.

It looks for a checkpoint that is newer than the last it has seen, evaluates the model in it, exports it if it is the
best so far, and enters the result in the run's events, where the first worker finds it for its callbacks. All that it
must remember lies in the run directory, so one that was killed goes on where it was.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from shoal.checkpoint.catalog import Catalog, Entry
from shoal.checkpoint.durable import remove_abandoned
from shoal.checkpoint.format import Checkpoint, read
from shoal.checkpoint.model_state import load_model
from shoal.comm.control import ControlPage
from shoal.comm.solo import SoloGroup
from shoal.core.config import Config
from shoal.core.errors import CheckpointError, ConfigError
from shoal.core.events import Evaluated, Warned
from shoal.core.world import View, World
from shoal.launch.rundir import RunDir
from shoal.launch.session import Session, SessionEnd
from shoal.strategies.base import Runtime
from shoal.strategies.single import Single
from shoal.train.evaluate import AUTO_BATCH, evaluate
from shoal.train.exporting import Best, export, exported
from shoal.train.hearing import EVALUATOR, EventTail, evaluation_in
from shoal.train.passing import result_in
from shoal.train.result import Result
from shoal.train.spec import RunSpec

_LOOK_S = 0.2  # between two looks for a checkpoint
_GONE = -1
_ALIVE_S = 0.5  # between two signs of life during an evaluation


def evaluated_elsewhere(config: Config, session: Session) -> bool:
    """Whether a process of its own evaluates during the run. One that the user started without a launcher has none."""
    return config.evaluator.enabled and session.launched


def check_evaluator(spec: RunSpec, session: Session) -> None:
    """Raise `ConfigError` where an evaluator is asked for that would have nothing to do."""
    if not evaluated_elsewhere(spec.config, session):
        return
    if spec.test is None:
        raise ConfigError(
            "evaluator.enabled (--evaluator) needs test data: give test=... to the Trainer, or leave the evaluator "
            "out. (A loop of your own evaluates by run.evaluate(data), and has no use for one.)"
        )


def follow(spec: RunSpec, session: Session) -> Result:
    """What `fit()` is in an evaluator. It returns only where the script has another fit() that is to be followed; else
    it ends the script."""
    number = session.next_fit()
    if number < len(session.follows) - 1:
        return result_in(RunDir(Path(session.follows[number])), spec)
    with contextlib.closing(Follower(spec, session, RunDir(Path(session.follows[-1])))) as follower:
        follower.until_over()
    raise SessionEnd


class Follower:
    """Evaluates the checkpoints in `run_dir`, each once, the newest first; those that are replaced by newer ones before
    it comes to them are left out."""

    def __init__(self, spec: RunSpec, session: Session, run_dir: RunDir) -> None:
        assert spec.test is not None, "refused before the run began"
        self._spec, self._session, self._run_dir, self._test = spec, session, run_dir, spec.test
        saved = run_dir.saved()
        saved.pop("script", None)
        self._config = Config.model_validate(saved)  # what the workers have agreed on
        self._catalog = Catalog(run_dir.checkpoints)
        self._tail = EventTail(run_dir.events_file)
        self._known: dict[int, Evaluated] = {}  # by step, since the run was started
        self._seen = -1  # the newest step that was evaluated or taken as known
        self._damaged: set[tuple[str, int]] = set()
        self._alive_s = 0.0
        remove_abandoned(run_dir.path)
        self._best = exported(run_dir.path)
        self._strategy = Single()
        # a control page of its own: it has no seat in that of the workers
        self._control = ControlPage()
        runtime = Runtime(
            world=World(),
            view=View(0, ()),
            group=SoloGroup(),
            control=self._control,
            seed=self._config.seed,
            precision=self._config.precision,
            layout=self._config.layout,
        )
        self._replica = self._strategy.bind(spec.program, runtime)

    def until_over(self) -> None:
        """Follow the run until it is over and its last checkpoint was evaluated."""
        due_s = time.monotonic()
        while True:
            over = self._session.run_over(max(_LOOK_S, due_s - time.monotonic()))
            self._catch_up()
            entry = self._next()
            if entry is not None:
                due_s = time.monotonic() + self._config.evaluator.every_s
                self._take(entry)
            elif over:
                return

    def close(self) -> None:
        """Give everything back. May be called twice."""
        self._strategy.close(self._replica)
        self._control.close()

    def _catch_up(self) -> None:
        """Take in what is known already: by an evaluator before this one, or by the workers at the end."""
        for event in self._tail.new():
            evaluation = evaluation_in(event)
            if evaluation is None:  # a run that begins, or goes on
                self._known.clear()
                self._seen = -1
                continue
            self._known[evaluation.cursor.step] = evaluation
            if evaluation.by == EVALUATOR:
                self._seen = max(self._seen, evaluation.cursor.step)

    def _next(self) -> Entry | None:
        entries = [entry for entry in self._catalog.entries() if entry.step > self._seen]
        return next((entry for entry in reversed(entries) if _identity(entry) not in self._damaged), None)

    def _take(self, entry: Entry) -> None:
        identity = _identity(entry)
        try:
            checkpoint = read(entry.path)
        except CheckpointError as error:
            # else it was removed before or in the middle of it, or replaced
            if identity[1] != _GONE and _identity(entry) == identity:
                self._damaged.add(identity)
                self._say(f"the evaluator passes over checkpoint {entry.name}: {error}")
            return
        known = self._known.get(entry.step)
        evaluation = known if known is not None else self._evaluate(checkpoint)
        self._export_if_best(checkpoint, evaluation)
        self._seen = entry.step
        if known is None:  # last of all: what is entered is done
            self._run_dir.append(evaluation)

    def _say(self, words: str) -> None:
        self._run_dir.append(Warned(words))
        print(words, file=sys.stderr)

    def _evaluate(self, checkpoint: Checkpoint) -> Evaluated:
        begin = time.perf_counter()
        load_model(self._spec.program.model, {name: p.tensor for name, p in checkpoint.state.pieces.items()})
        batch = AUTO_BATCH if self._config.eval_batch == "auto" else self._config.eval_batch
        self._show_life()
        names = _names(self._spec)
        values = evaluate(
            self._strategy, self._replica, self._test, batch, names, SoloGroup(), (1.0,), self._show_life
        )  # fmt: skip
        print(f"step {checkpoint.cursor.step}: {values}", flush=True)
        return Evaluated(checkpoint.cursor, values, time.perf_counter() - begin, EVALUATOR)

    def _show_life(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._alive_s:
            self._alive_s = now_s + _ALIVE_S
            self._session.report({"type": "alive"})

    def _export_if_best(self, checkpoint: Checkpoint, evaluation: Evaluated) -> None:
        kept, cursor = self._config.checkpoint, checkpoint.cursor
        values = dict(evaluation.values)
        best = Best(cursor.step, cursor.epoch, cursor.samples, kept.monitor, kept.mode, values)
        if best.beats(self._best):
            with self._run_dir.writing():
                export(self._run_dir.path, checkpoint, best)
            self._best = best


def _names(spec: RunSpec) -> list[str]:
    return ["loss", *spec.program.metrics]


def _identity(entry: Entry) -> tuple[str, int]:
    """What tells a checkpoint from another one of the same name."""
    try:
        return entry.name, entry.path.stat().st_ino
    except OSError:
        return entry.name, _GONE
