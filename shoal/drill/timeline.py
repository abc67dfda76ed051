"""What happened when, ready to be drawn: lanes of workers, views, pauses, loss. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from shoal.drill.measure import Recorded
from shoal.drill.report import Report
from shoal.drill.scene import Event

MOST_POINTS = 600  # of a curve: a picture has no more room


@dataclass(frozen=True)
class Life:
    """A worker process: seconds from its start to its end, and while it took part in a view."""

    pid: int
    host: str
    begin: float
    end: float
    lane: int = 0
    parts: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class ViewMark:
    time: float
    number: int
    size: int


@dataclass(frozen=True)
class Timeline:
    """All times are seconds since the first event of the hurt run."""

    seconds: float
    lives: tuple[Life, ...] = ()
    lanes: int = 0
    views: tuple[ViewMark, ...] = ()
    pauses: tuple[tuple[float, float], ...] = ()
    hurt_loss: tuple[tuple[float, float], ...] = ()
    calm_loss: tuple[tuple[float, float], ...] = ()  # each at the time at which the hurt run committed that step
    steps: tuple[tuple[float, float], ...] = ()


def timeline(calm: Recorded, hurt: Recorded, report: Report) -> Timeline:
    """The hurt run as a picture needs it, with the calm run's loss laid over it step by step."""
    if not hurt.events:
        return Timeline(0.0)
    zero = float(hurt.events[0]["time"])
    events = [{**event, "time": float(event["time"]) - zero} for event in hurt.events]
    end = max(event["time"] for event in events)
    steps = [event for event in events if event.get("kind") == "step"]
    times = {int(step["cursor"]["step"]): float(step["time"]) for step in steps}
    lives = pack(lives_of(events, end))
    views = [event for event in events if event.get("kind") == "view"]
    calm_steps = [step for step in calm.of_kind("step") if int(step["cursor"]["step"]) in times]
    gaps = [(a["time"], b["time"]) for a, b in pairwise(steps)]
    noticeable = max(0.1, 3 * (report.calm.median_step_s + report.pace_s))
    return Timeline(
        seconds=end,
        lives=tuple(lives),
        lanes=max((life.lane + 1 for life in lives), default=0),
        views=tuple(ViewMark(v["time"], int(v["number"]), len(v.get("pids") or v.get("members") or ())) for v in views),
        pauses=tuple((a, b) for a, b in gaps if b - a >= noticeable),
        hurt_loss=thin([(step["time"], float(step["loss"])) for step in steps]),
        calm_loss=thin([(times[int(step["cursor"]["step"])], float(step["loss"])) for step in calm_steps]),
        steps=thin([(step["time"], float(step["cursor"]["step"])) for step in steps]),
    )


def lives_of(events: Sequence[Event], end: float) -> list[Life]:
    """The worker processes in the order of their start."""
    lives: dict[int, Life] = {}
    inside: dict[int, float] = {}  # since when a worker takes part in a view

    def leave(pid: int, at: float) -> None:
        if pid in inside and pid in lives:
            lives[pid] = replace(lives[pid], parts=(*lives[pid].parts, (inside.pop(pid), at)))

    for event in events:
        at, kind = float(event["time"]), event.get("kind")
        if kind == "member_joined" and event.get("role") == "worker":
            lives.setdefault(int(event["pid"]), Life(int(event["pid"]), str(event.get("host", "")), at, end))
        elif kind == "member_lost" and int(event["pid"]) in lives:
            pid = int(event["pid"])
            leave(pid, at)
            lives[pid] = replace(lives[pid], end=at)
        elif kind == "view":
            pids = {int(pid) for pid in event.get("pids") or ()}
            for pid in set(inside) - pids:
                leave(pid, at)
            for pid in pids - set(inside):
                inside[pid] = at
                lives.setdefault(pid, Life(pid, "", at, end))
    for pid in list(inside):
        leave(pid, end)
    return sorted((_shown(life) for life in lives.values()), key=lambda life: (life.begin, life.pid))


def _shown(life: Life) -> Life:
    """A run that tells no views: whoever lives takes part. Who left a view and was never named lost ended with it."""
    if not life.parts:
        return replace(life, parts=((life.begin, life.end),))
    return life


def pack(lives: Sequence[Life]) -> list[Life]:
    """Give each life a lane: the one of a worker that is gone, so that a replacement stands where the old one stood."""
    busy: list[float] = []
    placed = []
    for life in lives:
        until = max([life.begin, *(end for _, end in life.parts)])
        lane = next((at for at, free in enumerate(busy) if free <= life.begin), len(busy))
        busy[lane : lane + 1] = [max(until, life.end)]
        placed.append(replace(life, lane=lane))
    return placed


def thin(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> tuple[tuple[float, float], ...]:
    """At most about `most` of the points, first and last among them; each stands for the mean of its stretch."""
    if len(points) <= most:
        return tuple(points)
    size = -(-len(points) // most)
    inner = [points[at : at + size] for at in range(1, len(points) - 1, size)]
    return (points[0], *((part[-1][0], sum(y for _, y in part) / len(part)) for part in inner), points[-1])
