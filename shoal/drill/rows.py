"""The words of a report's tables, the same on the terminal and on the page. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.drill.report import FaultReport, Report, RunFigures

Row = tuple[str, ...]


def fault_rows(report: Report) -> list[Row]:
    """A head, and a row for each fault."""
    head = ("fault", "whom", "at step", "noticed", "longest pause", "what the run said")
    return [head, *(_fault(fault) for fault in report.faults)]


def run_rows(report: Report) -> list[tuple[str, str, str]]:
    """A head, and a row for each figure: its name, the calm run's, the hurt run's."""
    calm, hurt = _figures(report.calm), _figures(report.hurt)
    rows = [(name, calm.get(name, "-"), hurt.get(name, "-")) for name in dict.fromkeys([*calm, *hurt])]
    rows.append(("difference of the loss", "", _small(report.loss_difference)))
    rows.append(("difference of the parameters", "", _relative(report.parameter_difference, report.limits.tolerance)))
    return [("", "calm", "hurt"), *rows]


def seconds(value: float | None) -> str:
    """``0.213 s``, or a dash."""
    if value is None:
        return "-"
    return f"{value:.3f} s" if value < 1 else f"{value:.2f} s"


def _fault(fault: FaultReport) -> Row:
    if fault.missed:
        return (fault.kind, "nobody", f"({fault.planned_step})", "-", "-", f"not carried out: {fault.missed}")
    said = fault.cause or ("-" if not fault.kind.startswith("slow") else "nothing: it was waited for")
    return (fault.kind, fault.member, str(fault.at_step), seconds(fault.detected_s), seconds(fault.pause_s), said)


def _figures(run: RunFigures) -> dict[str, str]:
    total = f" of {run.total_steps}" if run.total_steps else ""
    figures = {
        "status": run.status if not run.exit_status else f"{run.status} (exit status {run.exit_status})",
        "steps": f"{run.steps}{total}",
        "steps committed twice": str(run.lost_steps),
        "coverage": _coverage(run.coverage),
        "views": str(run.views),
        "longest gap between steps": seconds(run.longest_gap_s),
        "seconds": f"{run.seconds:.1f}",
    }
    finals = {f"final {name.replace('_', ' ')}": f"{value:.6g}" for name, value in run.final.items()}
    return {**figures, **finals}


def _coverage(seen: Mapping[str, int]) -> str:
    if not seen:
        return "not recorded"
    if seen["missed"] == seen["repeated"] == 0 and seen["once"] == seen["expected"]:
        return f"all {seen['expected']} samples once"
    return f"{seen['once']} of {seen['expected']} once, {seen['missed']} missed, {seen['repeated']} repeated"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}" if value else "0"


def _relative(value: float | None, tolerance: float) -> str:
    return "-" if value is None else f"{_small(value)} relative (allowed: {tolerance:g})"
