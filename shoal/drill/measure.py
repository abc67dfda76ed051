"""From the events and summaries of two runs to a report. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from shoal.drill.inject import Hit, Missed
from shoal.drill.kinds import KINDS
from shoal.drill.laws import judge, loss_of, synchronous
from shoal.drill.report import FaultReport, Limits, Report, RunFigures
from shoal.drill.scene import Event


@dataclass(frozen=True)
class Recorded:
    """What is left of a run: its events in the order they were written, its summary, its exit status."""

    events: Sequence[Event]
    summary: Mapping[str, Any] = field(default_factory=dict)
    exit_status: int = 0
    seconds: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)  # as it was saved

    def of_kind(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.get("kind") in kinds]


def measure(  # noqa: PLR0913, PLR0917 - as many facts as a report has
    calm: Recorded, hurt: Recorded, hits: Sequence[Hit], missed: Sequence[Missed], limits: Limits,
    parameter_difference: float | None, script: str = "", command: str = "", pace_s: float = 0.0, hurt_log: str = "",
) -> Report:  # fmt: skip
    """Put the two runs side by side and judge them."""
    figures = figure(calm), figure(hurt)
    faults = fault_reports(hurt, hits, missed, limits.deadline_s)
    return Report(
        script=script,
        command=command,
        calm=figures[0],
        hurt=figures[1],
        faults=tuple(faults),
        laws=judge(*figures, parameter_difference, limits),
        limits=limits,
        loss_difference=_loss_difference(*figures),
        parameter_difference=parameter_difference,
        pace_s=pace_s,
        notes=_notes(figures[1], pace_s),
        hurt_log=hurt_log,
    )


def figure(run: Recorded) -> RunFigures:
    """The figures of one run."""
    steps = run.of_kind("step")
    times = [float(step["time"]) for step in steps]
    started = run.of_kind("run_started")
    summary = run.summary
    strategy = str(summary.get("strategy") or (started[0]["strategy"] if started else ""))
    ended = run.of_kind("run_ended")
    status = str(summary.get("status") or (ended[-1]["status"] if ended else "did not end in good order"))
    return RunFigures(
        status=status,
        exit_status=run.exit_status,
        strategy=strategy,
        workers=int(summary.get("workers") or (started[0]["workers"] if started else 0)),
        steps=max((int(step["cursor"]["step"]) for step in steps), default=0),
        total_steps=int(started[0].get("total_steps") or 0) if started else 0,
        seconds=round(run.seconds, 3),
        training_s=times[-1] - times[0] if times else 0.0,
        median_step_s=statistics.median(float(step["step_s"]) for step in steps) if steps else 0.0,
        longest_gap_s=max((after - before for before, after in pairwise(times)), default=0.0),
        lost_steps=lost_steps(steps),
        views=len({int(view["number"]) for view in run.of_kind("view")}) or (1 if steps else 0),
        coverage=dict(summary.get("coverage", {})),
        final=dict(summary.get("final", {})),
        params_sha256=str(summary.get("params_sha256", "")),
        servers=int(summary.get("servers") or 0),
        synchronous=synchronous(strategy, run.config),
        first_loss=float(steps[0]["loss"]) if steps else None,
    )


def lost_steps(steps: Sequence[Event]) -> int:
    """How many steps were committed a second time: work that was done and lost."""
    seen: set[int] = set()
    again = 0
    for step in steps:
        number = int(step["cursor"]["step"])
        again += number in seen
        seen.add(number)
    return again


def pause_around(times: Sequence[float], begin: float, end: float) -> float | None:
    """The longest gap between two neighbours of `times`, among the one around `begin` and those up to `end`.

    None where there is none: nothing was committed before it, or nothing after it.
    """
    gaps = [b - a for a, b in pairwise(times) if a <= begin < b or (begin <= a and b <= end)]
    return max(gaps, default=None)


def detection(events: Sequence[Event], hit: Hit, until: float = math.inf) -> float | None:
    """Seconds from the hit to the first event that shows that the run knows: the member is named lost, or a view is
    formed without it. For the coordinator: until its successor was there. For a server: until its copy has taken over,
    or it is known to have none. None where nothing shows it before `until`, when another fault met the same member."""
    if hit.plan.kind == "coordinator":
        return None if hit.ended is None else hit.ended - hit.time
    if KINDS.get(hit.plan.kind).act == "slow" and hit.ended is not None:
        until = min(until, hit.ended)  # what happens to it later is not this one's doing
    for event in events:
        if not hit.time <= float(event["time"]) <= until:
            continue
        lost = event.get("kind") == "member_lost" and _is(event, hit)
        pids, hosts = event.get("pids") or (), event.get("members") or ()
        without = event.get("kind") == "view" and bool(pids) and hit.pid not in pids
        if hit.server is not None:
            without = event.get("kind") == "server" and event.get("rank") == hit.server
        if hit.plan.kind == "cut":
            without = event.get("kind") == "view" and not any(str(name).endswith(hit.member) for name in hosts)
        if lost or without:
            return float(event["time"]) - hit.time
    return None


def fault_reports(run: Recorded, hits: Sequence[Hit], missed: Sequence[Missed], window_s: float) -> list[FaultReport]:
    """One account for each fault that came, in order, then for those that did not. `window_s`: how long after it a gap
    can still be laid at its door, if no other fault comes first."""
    times = [float(step["time"]) for step in run.of_kind("step")]
    zero = float(run.events[0]["time"]) if run.events else 0.0
    reports = []
    for at, hit in enumerate(hits):
        until = min([hit.time + window_s, *(later.time for later in hits[at + 1 : at + 2])])
        again = next((later.time for later in hits[at + 1 :] if later.pid == hit.pid != 0), math.inf)
        detected = detection(run.events, hit, again)
        reports.append(
            FaultReport(
                kind=hit.plan.kind,
                planned_step=hit.plan.at_step,
                member=hit.member,
                pid=hit.pid,
                at_step=hit.at_step,
                time_s=hit.time - zero,
                ended_s=None if hit.ended is None else hit.ended - zero,
                detected_s=detected,
                pause_s=pause_around(times, hit.time, until),
                cause=_cause(run.events, hit) if detected is not None else "",
            )
        )
    return reports + [FaultReport(one.plan.kind, one.plan.at_step, missed=one.why) for one in missed]


def _is(event: Event, hit: Hit) -> bool:
    return event.get("pid") == hit.pid or (hit.plan.kind == "cut" and str(event.get("host")) == hit.member)


def _cause(events: Sequence[Event], hit: Hit) -> str:
    """What the run itself said of it."""
    for event in events:
        if float(event["time"]) < hit.time:
            continue
        if event.get("kind") == "member_lost" and _is(event, hit):
            return str(event.get("cause", ""))
        message = str(event.get("message", ""))
        if hit.plan.kind == "coordinator" and event.get("kind") == "warning" and "coordinator" in message:
            return message
    return ""


def _loss_difference(calm: RunFigures, hurt: RunFigures) -> float | None:
    ours, theirs = loss_of(calm, hurt)
    return None if ours is None or theirs is None else abs(theirs - ours)


def _notes(hurt: RunFigures, pace_s: float) -> tuple[str, ...]:
    if not pace_s:
        return ()
    return (
        f"The run is short, so the hurt one waited {pace_s:g} s before each step to be hurt in time: pauses "
        "include that. "
        "A longer run (--epochs, --steps) needs no holding back.",
    )
