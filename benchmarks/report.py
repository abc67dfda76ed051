"""Figures of finished runs, and the table made of them.

Runs of one round are compared with each other and with nothing else, because the machine is faster in one
minute than in the next. What is reported of a peer is the median of its ratios, round by round, with an
interval that holds the true median in at least 95 of 100 cases whatever the distribution (order statistics,
the sign test turned round).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import median, quantiles
from typing import Any


@dataclass(frozen=True)
class Run:
    """One run of one peer. `error` is None where it succeeded, and then the figures are there."""

    peer: str
    workload: str
    round: int
    load_average: float  # just before it
    wall_s: float
    samples_per_s: float | None = None
    cpu_s_per_step: float | None = None  # of one worker, on average: steadier than the clock on a busy machine
    page_faults_per_step: float | None = None
    checksum: float | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Figures:
    """What several measurements of one thing come to. The interval is None where they are too few."""

    count: int
    median: float
    lower_quartile: float
    upper_quartile: float
    minimum: float
    maximum: float
    interval: tuple[float, float] | None

    @staticmethod
    def of(values: Iterable[float]) -> Figures | None:
        """The figures of `values`, or None where there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        quartiles = quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
        return Figures(
            len(ordered),
            median(ordered),
            quartiles[0],
            quartiles[2],
            ordered[0],
            ordered[-1],
            _interval(ordered),
        )


def _interval(ordered: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The narrowest pair of order statistics, as far from either end, that holds the median."""
    count, outside = len(ordered), 0.0
    best: tuple[float, float] | None = None
    for cut in range(count // 2):
        # beyond the (cut + 1)-th from either end it lies with the chance of `cut` heads or fewer, twice
        outside += 2 * comb(count, cut) / 2**count
        if 1 - outside < confidence:
            break
        best = ordered[cut], ordered[count - 1 - cut]
    return best


def throughputs(runs: Iterable[Run], workload: str, peer: str) -> dict[int, float]:
    """Samples per second by round, of the runs that succeeded."""
    return {
        run.round: run.samples_per_s
        for run in runs
        if (run.workload, run.peer) == (workload, peer) and run.samples_per_s is not None
    }


def ratios(runs: Sequence[Run], workload: str, peer: str, base: str) -> Figures | None:
    """How many times as fast as `base` `peer` was, by round. A round in which one failed is left out."""
    mine, theirs = throughputs(runs, workload, peer), throughputs(runs, workload, base)
    return Figures.of(mine[number] / theirs[number] for number in mine.keys() & theirs.keys())


def disagreement(runs: Sequence[Run], workload: str, peer: str, base: str) -> float | None:
    """The largest relative difference of the parameters' norm to `base`: of the same work, rounding only."""
    mine = [run.checksum for run in runs if (run.workload, run.peer) == (workload, peer) and run.checksum]
    theirs = [run.checksum for run in runs if (run.workload, run.peer) == (workload, base) and run.checksum]
    if not mine or not theirs:
        return None
    return max(abs(m - t) / abs(t) for m in mine for t in theirs)


def table(
    runs: Sequence[Run],
    workload: str,
    titles: Mapping[str, str],
    skipped: Mapping[str, str],
    base: str,
    ours: str,
) -> str:
    """Markdown for one workload: a line for each of `titles`, in their order."""
    lines = [
        f"| {workload} | samples/s, median | quartiles | rounds | times {titles.get(base, base)}, median "
        f"| 95 % interval | {titles.get(ours, ours)} over it | 95 % interval | parameters differ by |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for peer, title in titles.items():
        figures = Figures.of(throughputs(runs, workload, peer).values())
        failures = [run.error for run in runs if (run.workload, run.peer) == (workload, peer) and run.error]
        if figures is None:
            reason = skipped.get(peer) or (f"failed: {failures[0]}" if failures else "not run")
            lines.append(f"| {title} | {reason} |" + " |" * 7)
            continue
        spread = f"{figures.lower_quartile:,.0f} to {figures.upper_quartile:,.0f}"
        count = f"{figures.count}" + (f" ({len(failures)} failed)" if failures else "")
        to_base = _ratio_cells(None if peer == base else ratios(runs, workload, peer, base))
        of_ours = _ratio_cells(None if peer == ours else ratios(runs, workload, ours, peer))
        differs = disagreement(runs, workload, peer, base)
        lines.append(
            f"| {title} | {figures.median:,.0f} | {spread} | {count} | {to_base} | {of_ours} "
            f"| {'' if differs is None or peer == base else f'{differs:.0e}' if differs else '0'} |"
        )
    return "\n".join(lines)


def _ratio_cells(figures: Figures | None) -> str:
    if figures is None:
        return "|"
    if figures.interval is None:
        return f"{figures.median:.2f} | (too few rounds)"
    return f"{figures.median:.2f} | {figures.interval[0]:.2f} to {figures.interval[1]:.2f}"


def summary(runs: Sequence[Run], workloads: Iterable[str], peers: Iterable[str], base: str, ours: str) -> Any:
    """The figures behind the tables, as JSON: workload, then peer."""

    def plain(figures: Figures | None) -> dict[str, Any] | None:
        return None if figures is None else asdict(figures)

    peers = list(peers)
    return {
        workload: {
            peer: {
                "samples_per_s": plain(Figures.of(throughputs(runs, workload, peer).values())),
                "times_yardstick": plain(ratios(runs, workload, peer, base)),
                "ours_over_it": plain(ratios(runs, workload, ours, peer)),
                "parameters_differ_by": disagreement(runs, workload, peer, base),
            }
            for peer in peers
        }
        for workload in workloads
    }
