"""What is promised of a run that was hurt, and whether it was kept."""

from __future__ import annotations

from shoal.drill.report import Law, Limits, RunFigures

# strategies by whose mathematics a hurt run and a calm one give the same parameters, up to rounding
SYNCHRONOUS = frozenset({"single", "allreduce"})
# sums in another order, as other numbers of workers make them, move parameters by less than this in a short run; a
# single lost sample moves them by about as much
TOLERANCE = 5e-6


def judge(calm: RunFigures, hurt: RunFigures, parameter_difference: float | None, limits: Limits) -> tuple[Law, ...]:
    """All laws, in order. Nothing is taken for granted: what could not be measured does not hold."""
    return (_completes(hurt), _once(hurt), _same(hurt.strategy, parameter_difference, limits), _no_wait(hurt, limits))


def _completes(hurt: RunFigures) -> Law:
    held = hurt.status == "completed" and hurt.exit_status == 0
    measured = f"{hurt.status}, {hurt.steps} of {hurt.total_steps or hurt.steps} steps"
    if hurt.exit_status:
        measured += f", exit status {hurt.exit_status}"
    return Law("The run completes", held, measured, "completed")


def _once(hurt: RunFigures) -> Law:
    seen = hurt.coverage
    if not seen:
        return Law(
            "Every sample shapes the model exactly once", False, "no coverage was recorded", "0 missed, 0 repeated"
        )
    held = seen["missed"] == seen["repeated"] == 0 and seen["once"] == seen["expected"] > 0
    measured = f"{seen['once']} of {seen['expected']} once, {seen['missed']} missed, {seen['repeated']} repeated"
    return Law("Every sample shapes the model exactly once", held, measured, "0 missed, 0 repeated")


def _same(strategy: str, difference: float | None, limits: Limits) -> Law:
    name = "The parameters are those of the calm run"
    if strategy and strategy not in SYNCHRONOUS:
        measured = "unknown" if difference is None else f"{difference:.1e} relative"
        return Law(name, True, measured, f"any: {strategy} is not synchronous")
    allowed = f"at most {limits.tolerance:g} relative"
    if difference is None:
        return Law(name, False, "cannot be compared: there is no final checkpoint", allowed)
    return Law(name, difference <= limits.tolerance, f"{difference:.1e} relative", allowed)


def _no_wait(hurt: RunFigures, limits: Limits) -> Law:
    return Law(
        "Nobody waits for ever",
        hurt.longest_gap_s <= limits.deadline_s,
        f"{hurt.longest_gap_s:.2f} s at most between two steps",
        f"at most {limits.deadline_s:g} s",
    )
