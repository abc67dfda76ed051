"""A small set of cases in which every two choices meet: strategy, optimizer, normalisation, fault, resume. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

from shoal.testing.soak.case import Case, sound_case
from shoal.testing.soak.history import Fault, FaultKind, History
from shoal.testing.soak.program import Program
from shoal.testing.soak.way import Way

Choice = tuple[str, ...]  # one of each axis, in their order

AXES: dict[str, tuple[str, ...]] = {
    "strategy": (
        "allreduce", "parameter-server", "ssp", "async", "incremental", "hybrid-incremental", "hybrid-allreduce",
        "hybrid-parameter-server",
    ),
    "optimizer": ("sgd", "momentum", "adamw", "adafactor", "muon", "nadam", "rprop"),
    "norm": ("none", "batch", "layer", "group"),
    "fault": ("none", "kill", "preempt", "all", "server", "coordinator"),
    "resume": ("none", "same", "fewer", "allreduce", "parameter-server", "incremental"),
}  # fmt: skip


def covering(axes: Sequence[Sequence[str]]) -> tuple[Choice, ...]:
    """Choices, one of each axis, such that any two values of two axes occur together in one of them.

    Greedy: each next choice takes up a pair that has not met yet, and of the rest what brings most new pairs.
    """
    missing = {pair for two in combinations(range(len(axes)), 2) for pair in _pairs_of(two, axes)}
    chosen: list[Choice] = []
    while missing:
        first: Pair = min(missing, key=lambda pair: _place(pair, axes))
        choice: dict[int, str] = dict(first)
        for axis in range(len(axes)):
            if axis not in choice:
                choice[axis] = max(axes[axis], key=lambda value, axis=axis: _new(choice, axis, value, missing))  # type: ignore[misc]
        whole = tuple(choice[axis] for axis in range(len(axes)))
        missing -= set(pairs(whole))
        chosen.append(whole)
    return tuple(chosen)


Pair = tuple[tuple[int, str], tuple[int, str]]


def pairs(choice: Choice) -> list[Pair]:
    """The pairs that meet in a choice."""
    return [((a, choice[a]), (b, choice[b])) for a, b in combinations(range(len(choice)), 2)]


def _pairs_of(two: tuple[int, int], axes: Sequence[Sequence[str]]) -> list[Pair]:
    a, b = two
    return [((a, one), (b, other)) for one, other in product(axes[a], axes[b])]


def _place(pair: Pair, axes: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """A total order, so that the same set comes out each time."""
    return tuple(number for axis, value in pair for number in (axis, axes[axis].index(value)))


def _new(choice: dict[int, str], axis: int, value: str, missing: set[Pair]) -> int:
    """How many pairs a value would bring that have not met yet."""
    met = [(min((axis, value), other), max((axis, value), other)) for other in choice.items()]
    return sum(pair in missing for pair in met)


def covering_cases() -> tuple[Case, ...]:
    """The covering set of `AXES` as cases."""
    return tuple(case_of(number, choice) for number, choice in enumerate(covering(tuple(AXES.values()))))


def case_of(number: int, choice: Choice) -> Case:
    """The case of a choice. What is no axis follows the number, so that it takes turns."""
    strategy, optimizer, norm, fault, resume = choice
    program = Program(
        seed=number + 3,  # with these, no batch is nothing but masked samples
        samples=(29, 33, 17)[number % 3],
        batch=(7, 8, 5)[number % 3],
        grain=(0, 3, 2)[number % 3],
        grainwise=number % 4 == 1,
        body=("mlp", "table", "conv", "lstm")[number % 4] if optimizer != "muon" else ("mlp", "table")[number % 2],
        norm=norm,  # type: ignore[arg-type]  # the values of the axes are those of the fields
        rows=12,
        sparse=number % 4 == 1 and optimizer not in ("muon", "adafactor"),  # refused under servers
        double=number % 2 == 0,
        loss=("cross", "masked", "pair", "weighted")[number % 4],
        optimizer=optimizer,  # type: ignore[arg-type]
    )
    way = _way(strategy, number)
    faults = []
    if fault != "none":
        served = way.served
        kind: FaultKind = "kill" if fault == "server" and not served else fault  # type: ignore[assignment]
        faults.append(Fault(kind, 2 + number % 3, number % 2, ("forward", "loss")[number % 2]))
    then = None
    if resume != "none":
        faults.append(Fault("interrupt", 5 + number % 2))
        then = _resumed(resume, way, number)
    return sound_case(Case(program, way, History(tuple(faults), then)))


def _way(name: str, number: int) -> Way:
    workers = 4 if name.startswith("hybrid") else (2, 3)[number % 2]
    servers, checkpoint = 1 + number % 2, (3, 2)[number % 2]
    if name == "ssp":
        return Way("parameter-server", workers, consistency="ssp:1", servers=servers, checkpoint=checkpoint)
    if name.startswith("hybrid-"):
        outer = name.removeprefix("hybrid-")
        return Way("hybrid", workers, outer, servers=servers, checkpoint=checkpoint)  # type: ignore[arg-type]
    return Way(name, workers, servers=servers, checkpoint=checkpoint)  # type: ignore[arg-type]


def _resumed(name: str, way: Way, number: int) -> Way | None:
    if name == "same":
        return None
    if name == "fewer":
        return Way("single", 1)
    return _way(name, number + 1)
