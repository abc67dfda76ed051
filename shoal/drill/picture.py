"""The timeline of a hurt run as an SVG picture. Its colours are those of the page it stands in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from shoal.drill.kinds import KINDS
from shoal.drill.report import FaultReport, Report
from shoal.drill.timeline import Life, Timeline

WIDTH, LEFT, RIGHT = 1080, 104, 16
LANE, BAR = 34, 16
TOP, LOSS_HEIGHT, GAP, AXIS = 34, 150, 34, 30
COLOURS = 4  # of workers, in turn

# what is drawn in the disc of a fault, in a square of 16 around its middle
ICONS = {
    "kill": '<path d="M-3.4-3.4 3.4 3.4M3.4-3.4-3.4 3.4"/>',
    "freeze": '<path d="M-2-3.6V3.6M2-3.6V3.6"/>',
    "slow": '<path d="M-4.2 0q1.05-5 2.1 0t2.1 0 2.1 0 2.1 0"/>',
    "preempt": '<path d="M-4 0H3.4M.4-3 3.6 0 .4 3"/>',
    "coordinator": '<path d="M0-4 4 0 0 4-4 0Z"/>',
    "cut": '<path d="M-4.4 0H-1.4M1.4 0H4.4M-1-3.4 1 3.4"/>',
}


class _Scale:
    """From seconds to a place in the picture."""

    def __init__(self, seconds: float) -> None:
        self._seconds = max(seconds, 1e-3)

    def __call__(self, time: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(max(time / self._seconds, 0.0), 1.0), 2)


def draw(line: Timeline, report: Report) -> str:
    """The picture, complete, as one ``<svg>`` element."""
    x = _Scale(line.seconds)
    lanes_bottom = TOP + LANE * (line.lanes + 1)  # the coordinator's is the last
    loss_top = lanes_bottom + GAP
    height = loss_top + LOSS_HEIGHT + AXIS
    parts = [
        *_axis(line.seconds, x, TOP, loss_top + LOSS_HEIGHT),
        *_pauses(line, x, loss_top + LOSS_HEIGHT),
        *_views(line, x, lanes_bottom),
        *_lanes(line, x),
        *_stops(line, report.faults, x),
        *_coordinator(line, report.faults, x),
        *_curves(line, x, loss_top),
        *_marks(line, report.faults, x, loss_top + LOSS_HEIGHT),
    ]
    title = escape(f"{len(report.faults)} faults over {line.seconds:.1f} seconds: workers, views and loss")
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}" xmlns="http://www.w3.org/2000/svg">'
        + "".join(parts)
        + "</svg>"
    )


def icon(kind: str) -> str:
    """The sign of a kind of fault, for the legend and the table."""
    return (
        f'<svg class="icon" viewBox="-9 -9 18 18" aria-hidden="true">'
        f'<g class="fault"><circle r="8"/>{ICONS[KINDS.get(kind).act]}</g></svg>'
    )


# ---- ground


def ticks(seconds: float, about: int = 8) -> list[float]:
    """Round times from 0 on, about so many."""
    if seconds <= 0:
        return [0.0]
    raw = seconds / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [round(step * at, 6) for at in range(int(seconds / step) + 1)]


def _axis(seconds: float, x: _Scale, top: float, bottom: float) -> list[str]:
    parts = []
    for tick in ticks(seconds):
        parts.append(f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(tick)}" y="{bottom + 18}" text-anchor="middle">{tick:g} s</text>')
    return parts


def _pauses(line: Timeline, x: _Scale, bottom: float) -> list[str]:
    return [
        f'<rect class="pause" x="{x(a)}" y="{TOP}" width="{max(1.0, x(b) - x(a)):.2f}" height="{bottom - TOP}">'
        f"<title>no step for {b - a:.2f} s</title></rect>"
        for a, b in line.pauses
    ]


def _views(line: Timeline, x: _Scale, bottom: float) -> list[str]:
    parts = [f'<text class="label" x="{LEFT - 12}" y="{TOP - 12}" text-anchor="end">view</text>']
    written = -1e9
    for view in line.views:
        at = x(view.time)
        parts.append(
            f'<line class="view" x1="{at}" x2="{at}" y1="{TOP - 6}" y2="{bottom}">'
            f"<title>view {view.number}: {view.size} workers, at {view.time:.2f} s</title></line>"
        )
        if at - written >= 15:  # numbers that would stand on each other are left out
            parts.append(f'<text class="tick" x="{at}" y="{TOP - 12}" text-anchor="middle">{view.number}</text>')
            written = at
    return parts


# ---- lanes


def _middle(lane: int) -> float:
    return TOP + LANE * lane + LANE / 2


def _lanes(line: Timeline, x: _Scale) -> list[str]:
    parts = [
        f'<text class="label" x="{LEFT - 12}" y="{_middle(lane) + 4}" text-anchor="end">seat {lane + 1}</text>'
        for lane in range(line.lanes)
    ]
    seen: dict[int, int] = {}
    for life in line.lives:
        generation = seen.get(life.lane, -1) + 1
        seen[life.lane] = generation
        parts += _life(life, (life.lane + generation) % COLOURS, x)
    return parts


def _life(life: Life, colour: int, x: _Scale) -> list[str]:
    y = _middle(life.lane) - BAR / 2
    where = f" on {life.host}" if life.host else ""
    told = escape(f"process {life.pid}{where}, from {life.begin:.2f} s to {life.end:.2f} s")
    last = max([life.end, *(end for _, end in life.parts)])
    parts = [
        f'<rect class="waits w{colour}" x="{x(life.begin)}" y="{y + BAR / 2 - 1.5}" '
        f'width="{max(1.0, x(last) - x(life.begin)):.2f}" height="3"><title>{told}</title></rect>'
    ]
    for begin, end in life.parts:
        parts.append(
            f'<rect class="w{colour}" x="{x(begin)}" y="{y}" width="{max(1.5, x(end) - x(begin)):.2f}" height="{BAR}" '
            f'rx="4"><title>{told}</title></rect>'
        )
    return parts


def _lane_of(fault: FaultReport, line: Timeline) -> int:
    """Where the fault's mark stands: in its worker's lane, or in that of the coordinator and the servers, the last."""
    if KINDS.get(fault.kind).aims_at == "worker":
        return next((life.lane for life in line.lives if life.pid == fault.pid), line.lanes)
    if KINDS.get(fault.kind).aims_at == "host":
        return next((life.lane for life in line.lives if life.host and life.host == fault.member), line.lanes)
    return line.lanes


def _stops(line: Timeline, faults: Sequence[FaultReport], x: _Scale) -> list[str]:
    """While a worker was held: from the hit until it went on, or until it was put out."""
    parts = []
    for fault in faults:
        if fault.time_s is None or KINDS.get(fault.kind).act not in ("freeze", "slow", "cut"):
            continue
        ends = [life.end for life in line.lives if life.pid == fault.pid]
        end = fault.ended_s if fault.ended_s is not None else (ends[0] if ends else fault.time_s)
        y = _middle(_lane_of(fault, line)) - BAR / 2
        parts.append(
            f'<rect class="held" x="{x(fault.time_s)}" y="{y}" rx="4" height="{BAR}" '
            f'width="{max(1.5, x(end) - x(fault.time_s)):.2f}"/>'
        )
    return parts


def _coordinator(line: Timeline, faults: Sequence[FaultReport], x: _Scale) -> list[str]:
    y = _middle(line.lanes)
    served = any(KINDS.get(fault.kind).aims_at == "server" for fault in faults)
    label = "servers" if served else "coordinator"
    parts = [
        f'<text class="label" x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{label}</text>',
        f'<line class="keeps" x1="{x(0)}" x2="{x(line.seconds)}" y1="{y}" y2="{y}"/>',
    ]
    for fault in faults:
        if fault.kind == "coordinator" and fault.time_s is not None:
            end = fault.ended_s if fault.ended_s is not None else line.seconds
            width = max(2.0, x(end) - x(fault.time_s))
            parts.append(
                f'<rect class="away" x="{x(fault.time_s)}" y="{y - 4}" width="{width:.2f}" height="8">'
                f"<title>without a coordinator for {end - fault.time_s:.2f} s</title></rect>"
            )
    return parts


def _marks(line: Timeline, faults: Sequence[FaultReport], x: _Scale, bottom: float) -> list[str]:
    parts = []
    for fault in faults:
        if fault.time_s is None:
            continue
        at, y = x(fault.time_s), _middle(_lane_of(fault, line))
        pause = "" if fault.pause_s is None else f", longest pause {fault.pause_s:.2f} s"
        told = escape(f"{fault.kind}: {fault.member}, after step {fault.at_step}{pause}")
        parts.append(f'<line class="when" x1="{at}" x2="{at}" y1="{y}" y2="{bottom}"/>')
        parts.append(
            f'<g class="fault" transform="translate({at} {y})"><title>{told}</title>'
            f'<circle r="8.5"/>{ICONS[KINDS.get(fault.kind).act]}</g>'
        )
    return parts


# ---- loss


def _curves(line: Timeline, x: _Scale, top: float) -> list[str]:
    values = [y for _, y in (*line.hurt_loss, *line.calm_loss) if math.isfinite(y)]
    parts = [f'<text class="label" x="{LEFT - 12}" y="{top - 4}" text-anchor="end">loss</text>']
    if not values:
        return parts
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def y(value: float) -> float:
        return round(top + 6 + (LOSS_HEIGHT - 12) * (1 - (value - low) / span), 2)

    for value in (high, low):
        parts.append(f'<text class="tick" x="{LEFT - 12}" y="{y(value) + 14}" text-anchor="end">{value:.3g}</text>')
    parts.append(f'<line class="base" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(low) + 6}" y2="{y(low) + 6}"/>')
    for name, points in (("calm", line.calm_loss), ("hurt", line.hurt_loss)):
        path = " ".join(f"{x(time)},{y(value)}" for time, value in points if math.isfinite(value))
        parts.append(f'<polyline class="{name}" points="{path}"/>')
    return parts
