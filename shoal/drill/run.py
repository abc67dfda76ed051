"""Conducts a drill: the same script undisturbed and hurt, one after the other, and what came of it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.config import ElasticSettings
from shoal.core.errors import RunDirError, ShoalError, UserError
from shoal.drill.fleet import Fleet, check_fleet, check_server_plans, recorded_fleet
from shoal.drill.ground import Ground, NamespaceHosts, OneMachine
from shoal.drill.inject import Hit, Injector, Missed
from shoal.drill.kinds import KINDS, Kind, check_possible
from shoal.drill.laws import LOSS_TOLERANCE, TOLERANCE
from shoal.drill.measure import Recorded, figure, measure
from shoal.drill.page import page
from shoal.drill.parameters import has_final, relative_difference
from shoal.drill.process import TrainProcess
from shoal.drill.report import Limits, Report, RunFigures
from shoal.drill.scene import Tail
from shoal.drill.schedule import FaultPlan, check_plans, pace_for, random_schedule
from shoal.drill.timeline import timeline
from shoal.launch.rundir import RunDir, replace_file

POLL_S = 0.004
STALL_S = 30.0  # beyond every deadline of its own, a run is given up
GAVE_UP = 124  # the status of a run that the drill had to end, as `timeout` counts


@dataclass(frozen=True)
class RandomFaults:
    """A schedule to be drawn as soon as the length of the run is known."""

    seed: int
    faults: int
    kinds: tuple[Kind, ...]


@dataclass(frozen=True)
class Drill:
    """What is asked for. `words` are options of `shoal train` that both runs get; `elastic` is what they amount to."""

    script: str
    run_dir: Path
    workers: int
    faults: RandomFaults | tuple[FaultPlan, ...]
    words: tuple[str, ...] = ()
    script_args: tuple[str, ...] = ()
    elastic: ElasticSettings = field(default_factory=ElasticSettings)
    stated: frozenset[str] = frozenset()  # settings that the command line states: not ours to change
    tolerance: float = TOLERANCE
    deadline_s: float | None = None
    pace_s: float | None = None
    hosts: int = 1
    fleet: Fleet | None = None  # as far as it is known before anything runs
    loss_tolerance: float = LOSS_TOLERANCE

    def kinds(self) -> list[Kind]:
        if isinstance(self.faults, RandomFaults):
            return list(self.faults.kinds)
        return [KINDS.get(plan.kind) for plan in self.faults]


class Progress:
    """Is told how a drill goes on; this one keeps silent."""

    def phase(self, words: str) -> None:
        """Something longer begins."""

    def at(self, step: int, total: int, workers: int) -> None:
        """The run has come so far. Called often."""

    def hit(self, hit: Hit) -> None:
        """A fault was carried out."""


def conduct(drill: Drill, progress: Progress, home: Ground | None = None) -> Report:
    """Run the script twice and report; the report is in `drill.json` and `drill.html`, too. Takes as long as both runs.

    Raises UserError for what cannot be drilled, ShoalError where the undisturbed run fails. Whatever happens, also a
    KeyboardInterrupt, no process of either run is left. `home`: where runs on one machine take place, if not here.
    """
    check_possible(drill.kinds(), drill.workers, drill.hosts)
    if drill.fleet is not None:
        check_fleet([kind.name for kind in drill.kinds()], drill.fleet)
        if not isinstance(drill.faults, RandomFaults):
            check_server_plans(drill.faults, drill.fleet)
    home = home if home is not None else OneMachine()
    with home if drill.hosts == 1 else NamespaceHosts(drill.hosts) as ground:
        _claim(drill.run_dir)
        return _conduct(drill, progress, ground)


def _conduct(drill: Drill, progress: Progress, ground: Ground) -> Report:
    progress.phase("the calm run")
    # on the same hosts: what a strategy does may depend on who shares one
    calm, figures = _calm(drill, progress, ground)
    plans = _plans(drill, figures.steps, recorded_fleet(calm.config, calm.summary))
    pace = drill.elastic.pace_s if "elastic.pace_s" in drill.stated else drill.pace_s
    if pace is None:
        # other hosts need as long to be there as the calm run needed to begin, and more, as training goes on beside it
        start_s = 2 * (figures.seconds - figures.training_s) if drill.hosts > 1 else 0.0
        pace = pace_for(plans, figures.steps, figures.median_step_s, start_s)
    deadline_s = drill.deadline_s or _deadline_s(figures, drill.elastic, pace)
    limits = Limits(drill.tolerance, deadline_s, drill.loss_tolerance)
    progress.phase("the hurt run")
    hurt, hits, missed, words = _hurt(drill, ground, plans, pace, limits, progress)
    report = measure(
        calm,
        hurt,
        hits,
        missed,
        limits,
        relative_difference(drill.run_dir / "calm", drill.run_dir / "hurt"),
        script=drill.script,
        command=shlex.join(["shoal", *sys.argv[1:]]),
        pace_s=pace,
        hurt_log=words if hurt.exit_status else "",
    )
    replace_file(drill.run_dir / "drill.json", json.dumps(report.to_json(), indent=2) + "\n")
    replace_file(drill.run_dir / "drill.html", page(report, timeline(calm, hurt, report)))
    return report


# ---- before


def _claim(run_dir: Path) -> None:
    """The directory of a drill is its own: two runs that must not be resumed lie in it."""
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise RunDirError(f"{run_dir} is not empty, and a drill needs a directory of its own: choose another --run-dir")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(f"{run_dir} cannot be made ({error.strerror}): choose another --run-dir") from None


def _plans(drill: Drill, steps: int, fleet: Fleet) -> list[FaultPlan]:
    check_fleet([kind.name for kind in drill.kinds()], fleet)
    if isinstance(drill.faults, RandomFaults):
        ask = drill.faults
        plans = random_schedule(ask.seed, ask.faults, ask.kinds, steps, drill.workers, drill.hosts, fleet.servers)
    else:
        plans = list(drill.faults)
    check_plans(plans, steps, drill.workers, drill.hosts)
    check_server_plans(plans, fleet)
    return plans


def _deadline_s(calm: RunFigures, elastic: ElasticSettings, pace_s: float) -> float:
    """How long nobody may commit a step: what the calm run takes at most, a lease to notice, and ample time to mend."""
    return float(round(calm.longest_gap_s + pace_s + 2 * elastic.lease_s + 10.0))


# ---- the two runs


def _start(drill: Drill, ground: Ground, name: str, *more: str) -> TrainProcess:
    words = [*drill.words, *more, *(["--", *drill.script_args] if drill.script_args else [])]
    return ground.start(drill.script, drill.workers, drill.run_dir / name, words)


def _calm(drill: Drill, progress: Progress, ground: Ground) -> tuple[Recorded, RunFigures]:
    where = drill.run_dir / "calm"
    # nothing is awaited here by a pace: the run itself waits until all hosts have joined
    all_there = drill.hosts > 1 and "elastic.min_workers" not in drill.stated
    more = [f"--set=elastic.min_workers={drill.workers}"] if all_there else []
    with _start(drill, ground, "calm", *more) as process:
        injector = Injector([], ground.hands(process, where), drill.elastic.lease_s)
        recorded = _follow(process, where, injector, progress, ground, None)
        words = process.last_words()
    if recorded.exit_status:
        status = recorded.exit_status if recorded.exit_status > 0 else 1
        error = ShoalError(f"the calm run failed (exit status {status}), so there is nothing to compare with:\n{words}")
        error.exit_status = status
        raise error
    figures = figure(recorded)
    if figures.status != "completed" or not figures.steps:
        raise UserError(f"the calm run {figures.status} after {figures.steps} steps: a drill needs one that completes")
    if not has_final(where, figures.steps):
        raise UserError(
            "the calm run has left no final checkpoint, so parameters cannot be compared: "
            "give --set checkpoint.every='1 epoch'"
        )
    return recorded, figures


def _hurt(
    drill: Drill, ground: Ground, plans: Sequence[FaultPlan], pace_s: float, limits: Limits, progress: Progress
) -> tuple[Recorded, list[Hit], list[Missed], str]:
    where = drill.run_dir / "hurt"
    ours: dict[str, float] = {
        "elastic.max_restarts": max(drill.elastic.max_restarts, len(plans) + drill.workers),
        "elastic.max_preemptions": max(drill.elastic.max_preemptions, len(plans) + drill.workers),
        **({"elastic.pace_s": pace_s} if pace_s else {}),
    }
    more = [f"--set={name}={value:g}" for name, value in ours.items() if name not in drill.stated]
    with _start(drill, ground, "hurt", *more) as process:
        injector = Injector(plans, ground.hands(process, where), drill.elastic.lease_s)
        stall_s = limits.deadline_s + drill.elastic.hang_s + STALL_S
        try:
            recorded = _follow(process, where, injector, progress, ground, stall_s)
        finally:
            injector.release()
        return recorded, injector.hits, injector.missed(), process.last_words()


def _follow(
    process: TrainProcess, where: Path, injector: Injector, progress: Progress, ground: Ground, stall_s: float | None
) -> Recorded:
    """Follow a run to its end, hurting it by the way. Where it says nothing for `stall_s` after its first step, it is
    ended: by then every deadline of its own has passed."""
    tail = Tail(where / "events.jsonl")
    events: list[dict[str, Any]] = []
    total, heard = 0, time.monotonic()
    while True:
        status = process.status()  # before the events are read, so that none is missed
        new = tail.read()
        events += new
        total = next((int(event["total_steps"] or 0) for event in new if event["kind"] == "run_started"), total)
        injector.learn(new)
        if status is not None:
            break
        for hit in injector.act():
            progress.hit(hit)
        ground.tend()
        progress.at(injector.scene.step, total, len(injector.scene.members))
        heard = time.monotonic() if new else heard
        if stall_s is not None and injector.scene.step and time.monotonic() - heard > stall_s:
            process.end()
            events += tail.read()
            status = GAVE_UP
            break
        time.sleep(POLL_S)
    ground.finish()
    return Recorded(events, _summary(where), status, process.seconds, _config(where))


def _config(where: Path) -> dict[str, Any]:
    run_dir = RunDir(where)
    return run_dir.saved() if run_dir.exists else {}


def _summary(where: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((where / "summary.json").read_text()))
    except (OSError, ValueError):
        return {}
