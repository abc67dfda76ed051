"""What is promised of a run that was hurt, and whether it was kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.drill.report import Law, Limits, RunFigures

# sums in another order, as other numbers of workers make them, move parameters by less than this in a short run; a
# single lost sample moves them by about as much
TOLERANCE = 5e-6
LOSS_TOLERANCE = 0.1


def synchronous(strategy: str, config: Mapping[str, Any]) -> bool:
    """Whether by the mathematics of the strategy a hurt run and a calm one give the same parameters, up to rounding.
    `config`: what the run has saved of its settings. What a codec has left out is lost with the worker that did."""
    if (config.get("comm") or {}).get("codec", "none") != "none":
        return False
    if strategy == "hybrid":
        strategy = (config.get("hybrid") or {}).get("outer", "incremental")
    if strategy == "parameter-server":
        return str((config.get("server") or {}).get("consistency", "bsp")) == "bsp"
    return strategy in ("single", "allreduce", "")


def loss_of(calm: RunFigures, hurt: RunFigures) -> tuple[float | None, float | None]:
    """The final losses to be compared; of the test data where there are some, which are the same for both."""
    name = next((name for name in ("test_loss", "train_loss") if name in calm.final and name in hurt.final), None)
    return (None, None) if name is None else (calm.final[name], hurt.final[name])


def judge(calm: RunFigures, hurt: RunFigures, parameter_difference: float | None, limits: Limits) -> tuple[Law, ...]:
    """All laws, in order. Nothing is taken for granted: what could not be measured does not hold."""
    same = _same(parameter_difference, limits) if hurt.synchronous else _learns(calm, hurt, limits)
    return (_completes(hurt), _once(hurt), same, _no_wait(hurt, limits))


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


def _same(difference: float | None, limits: Limits) -> Law:
    name = "The parameters are those of the calm run"
    allowed = f"at most {limits.tolerance:g} relative"
    if difference is None:
        return Law(name, False, "cannot be compared: there is no final checkpoint", allowed)
    if difference > limits.tolerance:  # in a long run rounding alone may do it: there is a way to know
        allowed += "; with --set passes=grain there is no rounding, and any difference is a fault"
    return Law(name, difference <= limits.tolerance, f"{difference:.1e} relative", allowed)


def _learns(calm: RunFigures, hurt: RunFigures, limits: Limits) -> Law:
    """Two runs that are not synchronous differ, hurt or not: what must be the same is how well they learn."""
    name = "It learns as the calm run does"
    ours, theirs = loss_of(calm, hurt)
    allowed = f"at most {limits.loss_tolerance:g} of what the calm run has learned above: not a synchronous strategy"
    if ours is None or theirs is None or calm.first_loss is None:
        return Law(name, False, "cannot be compared: there is no final loss", allowed)
    learned = calm.first_loss - ours if calm.first_loss > ours else abs(ours)
    return Law(name, theirs - ours <= limits.loss_tolerance * learned, f"loss {theirs:.4g} against {ours:.4g}", allowed)


def _no_wait(hurt: RunFigures, limits: Limits) -> Law:
    return Law(
        "Nobody waits for ever",
        hurt.longest_gap_s <= limits.deadline_s,
        f"{hurt.longest_gap_s:.2f} s at most between two steps",
        f"at most {limits.deadline_s:g} s",
    )
