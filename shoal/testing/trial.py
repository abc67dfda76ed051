"""A strategy on trial: trains plans on real ranks and puts together what the ranks saw."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.launch.session import Session
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.training import Order, RankRecord, State, StrategyChoice, train_all

Prelude = Callable[[Session], None]
_numbers = itertools.count()


@dataclass(frozen=True)
class Trained:
    """A run as a whole: what all ranks agree on, and the state put together from their parts."""

    losses: tuple[float, ...]
    rates: tuple[tuple[float, ...], ...]
    state: dict[str, Tensor]  # model.<name>, optimizer.<name>.<key>
    summary: dict[str, Any]
    ranks: tuple[RankRecord, ...]

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {n.removeprefix("model."): t for n, t in self.state.items() if n.startswith("model.")}

    @property
    def evaluation(self) -> dict[str, float]:
        return {name: value for name, value in self.summary["final"].items() if name.startswith("test_")}

    def seen(self, samples: int) -> dict[int, np.ndarray[Any, np.dtype[np.int64]]]:
        """By epoch: how often each sample was committed, as the strategy reported it, over all ranks."""
        counts: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}
        for record in self.ranks:
            for epoch, indices in zip(record.epochs, record.committed, strict=True):
                np.add.at(counts.setdefault(epoch, np.zeros(samples, dtype=np.int64)), indices, 1)
        return counts


@dataclass(frozen=True)
class Trial:
    """Trains with `strategy`. `how` holds for every run; `prelude` is called on every rank before it begins, and then
    whatever it was `prepared` with.

    `replicated`: after a step every rank has the whole model, in the same bits.
    """

    harness: RankHarness
    strategy: StrategyChoice
    directory: Path
    how: Mapping[str, Any] = field(default_factory=dict)
    replicated: bool = True
    prelude: Prelude | None = None
    deadline_s: float = 120.0
    preparations: tuple[Prelude, ...] = ()

    def prepared(self, prelude: Prelude) -> Trial:
        """The same, with something more that every rank does before it begins."""
        return replace(self, preparations=(*self.preparations, prelude))

    def with_strategy(self, strategy: StrategyChoice, **how: Any) -> Trial:
        return replace(self, strategy=strategy, how={**self.how, **how})

    def order(
        self,
        plan: Plan,
        *,
        run_dir: Path | None = None,
        until: int | None = None,
        poison: int | None = None,
        **how: Any,
    ) -> Order:
        """What the ranks are told. Without `run_dir` the run gets a new one."""
        directory = run_dir if run_dir is not None else self.directory / f"run-{next(_numbers)}"
        dotted = {name.replace("__", "."): value for name, value in how.items()}
        return Order(plan, self.strategy, str(directory), {**self.how, **dotted}, until, poison)

    def train(self, workers: int, *orders: Order) -> list[Trained]:
        """Carry out `orders` on `workers` new ranks. Asserts that the ranks agree on what they must agree on."""
        preludes = [one for one in (self.prelude, *self.preparations) if one is not None]
        with _by_value(self.strategy, *preludes):
            import cloudpickle

            parcel = cloudpickle.dumps((orders, preludes))
        by_rank: list[list[RankRecord]] = self.harness.run(workers, _carry_out, parcel, deadline_s=self.deadline_s)
        return [self._join(records) for records in zip(*by_rank, strict=True)]

    def run(self, workers: int, plan: Plan, **how: Any) -> Trained:
        """Train `plan` once."""
        return self.train(workers, self.order(plan, **how))[0]

    def _join(self, records: tuple[RankRecord, ...]) -> Trained:
        first = records[0]
        for rank, record in enumerate(records):
            equal = np.array_equal(record.losses, first.losses, equal_nan=True)
            assert equal, f"rank {rank} has other losses than rank 0"
            assert record.rates == first.rates, f"rank {rank} has other learning rates than rank 0"
            if self.replicated:
                for name, tensor in record.held.items():
                    assert same_bits(tensor, first.held[name]), f"rank {rank} has another {name} than rank 0"
        state = assemble([record.state for record in records])
        return Trained(tuple(first.losses), tuple(first.rates), state, first.summary, records)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal to the last bit, where they are not a number too."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(*(t.contiguous().view(-1).view(torch.uint8) for t in (first, second)))


def assemble(parts: list[State]) -> dict[str, Tensor]:
    """Put whole tensors together from pieces. Asserts that every element is there."""
    wholes: dict[str, Tensor] = {}
    missing: dict[str, Tensor] = {}
    for part in parts:
        for name, piece in part.items():
            whole = wholes.setdefault(name, torch.empty(piece.shape, dtype=piece.tensor.dtype))
            absent = missing.setdefault(name, torch.ones(piece.shape, dtype=torch.bool))
            place = tuple(slice(o, o + s) for o, s in zip(piece.offset, piece.tensor.shape, strict=True))
            whole[place], absent[place] = piece.tensor, False
    for name, absent in missing.items():
        assert not bool(absent.any()), f"no rank has all of {name}"
    return wholes


def _carry_out(session: Session, parcel: bytes) -> list[RankRecord]:
    # from the test itself, by a descriptor of its own
    orders, preludes = pickle.loads(parcel)  # noqa: S301
    for prelude in preludes:
        prelude(session)
    return train_all(session, orders)


@contextlib.contextmanager
def _by_value(*things: object) -> Iterator[None]:
    """What a test module defines need not be importable in the ranks."""
    import cloudpickle

    names = {str(getattr(thing, "__module__", "builtins")) for thing in things}
    foreign = {name for name in names if name.partition(".")[0] not in ("shoal", "torch", "builtins", "__main__")}
    modules = [sys.modules[name] for name in foreign if name in sys.modules]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
