"""Which codec, if any: a pure decision from what was measured in the first steps of a run.

A codec is chosen only where it is predicted to be clearly faster than none, and of those that are about equally fast
the most precise one is. Predictions lean to the side of none: what none costs is measured with all that backward hides
of it, while what a codec sends is counted as if backward hid nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NONE = "none"
LEAST_GAIN = 0.10  # a codec must make a step shorter by this part of it
ABOUT_EQUAL = 0.05  # codecs whose steps differ by less are chosen by their precision
CANDIDATES = ("fp16", "bf16", "int8", "powersgd:4")
"""What ``auto`` looks at. Not top-k: how much a step of it achieves cannot be seen from its time."""


@dataclass(frozen=True)
class CodecCost:
    """A codec on the gradients of this run. `ratio`: bytes out for each byte in. `encode_s`: of this worker's gradient,
    error feedback included; `decode_s`: of those of all workers; `error`: the norm of what one round trip leaves out,
    relative to the gradient's."""

    name: str
    ratio: float
    encode_s: float
    decode_s: float
    error: float


@dataclass(frozen=True)
class Measured:
    """One worker's first steps without a codec.

    `compute_s`: forward and backward of a step. `exposed_s`: what a step waited for sums after that; None where it is
    not known. `bandwidth` (bytes/s of one worker) and `latency_s` are those of an exchange with nothing beside it.
    """

    compute_s: float
    gradient_bytes: int
    bandwidth: float
    latency_s: float
    exposed_s: float | None = None
    costs: tuple[CodecCost, ...] = ()


@dataclass(frozen=True)
class CodecChoice:
    """The codec, why, and the predicted seconds of a step with each."""

    name: str
    reason: str
    predicted_s: Mapping[str, float] = field(default_factory=dict)


def choose(measured: Measured, workers: int) -> CodecChoice:
    """The codec for `workers` workers that have all measured this. Pure."""
    if workers == 1:
        return CodecChoice(NONE, "one worker sends nothing")
    predicted = {NONE: predict_none(measured, workers)}
    predicted |= {cost.name: predict(measured, cost, workers) for cost in measured.costs}
    errors = {cost.name: cost.error for cost in measured.costs}
    enough = (1 - LEAST_GAIN) * predicted[NONE]
    quick = [name for name in errors if predicted[name] <= enough]
    if not quick:
        others = [name for name in predicted if name != NONE]
        best = min(others, key=lambda name: predicted[name], default=None)
        beside = f", {best} {_ms(predicted[best])}" if best is not None else ""
        return CodecChoice(NONE, f"no codec is clearly faster: none {_ms(predicted[NONE])} a step{beside}", predicted)
    fastest = min(predicted[name] for name in quick)
    equal = [name for name in quick if predicted[name] <= (1 + ABOUT_EQUAL) * fastest]
    name = min(equal, key=lambda name: (errors[name], predicted[name]))
    return CodecChoice(
        name,
        f"{_ms(predicted[name])} a step instead of {_ms(predicted[NONE])}: {measured.gradient_bytes / 1e6:.1f} MB of "
        f"gradient at {measured.bandwidth / 1e6:.0f} MB/s",
        predicted,
    )


def is_worth_trying(measured: Measured, workers: int) -> bool:
    """Whether a codec could be clearly faster if it cost nothing and sent nothing. Pure."""
    return workers > 1 and measured.compute_s <= (1 - LEAST_GAIN) * predict_none(measured, workers)


def predict_none(measured: Measured, workers: int) -> float:
    """Seconds of a step without a codec. What a worker waits may be for slower ones: no more than the exchange takes
    is the link's fault."""
    sent = 2 * (workers - 1) / workers * measured.gradient_bytes
    exchange_s = measured.latency_s + sent / measured.bandwidth
    exposed_s = exchange_s if measured.exposed_s is None else min(measured.exposed_s, exchange_s)
    return measured.compute_s + exposed_s


def predict(measured: Measured, cost: CodecCost, workers: int) -> float:
    """Seconds of a step with a codec, if nothing of it is hidden."""
    sent = (workers - 1) * cost.ratio * measured.gradient_bytes
    exchange_s = measured.latency_s + sent / measured.bandwidth
    return measured.compute_s + cost.encode_s + cost.decode_s + exchange_s


def combine(everyone: Sequence[Measured]) -> Measured:
    """What holds for a group, of what its members have measured, each the same codecs: steps are as long as those of
    the slowest, which is also the one that waits for nobody but the link."""
    costs = [
        CodecCost(
            same[0].name,
            same[0].ratio,
            max(cost.encode_s for cost in same),
            max(cost.decode_s for cost in same),
            max(cost.error for cost in same),
        )
        for same in zip(*(one.costs for one in everyone), strict=True)
    ]
    # one that waited less has found the others waiting: what it waited is the link's
    exposed = [one.exposed_s for one in everyone if one.exposed_s is not None]
    return Measured(
        max(one.compute_s for one in everyone),
        everyone[0].gradient_bytes,
        min(one.bandwidth for one in everyone),
        max(one.latency_s for one in everyone),
        min(exposed) if exposed else None,
        tuple(costs),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
