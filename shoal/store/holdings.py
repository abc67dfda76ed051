"""The slices of one server: declared, written, read, and updated together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from shoal.store import operations as ops
from shoal.store.answers import Answer, Done, Pulled, UpdaterState
from shoal.store.held import Held
from shoal.store.keys import Slice
from shoal.store.refusal import Refusal
from shoal.store.staging import Pool
from shoal.store.sums import Contribution, is_plain

Ways = dict[type[ops.Operation], Callable[[Any], Answer]]  # how to carry out each kind of operation


class Holdings:
    """What a server holds, by label in the order of declaration, and the version of all of it. Each operation is
    checked as a whole before anything is changed, and raises `Refusal`."""

    def __init__(self) -> None:
        self.version = 0  # counts whatever changed values: commits, pushes, sets
        self.held: dict[str, Held] = {}
        self.pool = Pool()
        self.broken: Exception | None = None  # by an updater, halfway through a change

    def ways(self) -> Ways:
        return {
            ops.Declare: self.declare,
            ops.Set: self.set,
            ops.Push: self.push,
            ops.PushPull: self.push,
            ops.Pull: self.pull,
            ops.GetState: self.get_state,
            ops.SetState: self.set_state,
        }

    def find(self, where: str) -> Held:
        """The slice with this label; raises `Refusal`."""
        if where not in self.held:
            raise Refusal("unknown", f"{where} is not held here: declare it first")
        return self.held[where]

    def declare(self, operation: ops.Declare) -> Answer:
        known = {label: held.holding for label, held in self.held.items()}
        by_key: dict[str, list[Slice]] = {}
        for holding in known.values():
            by_key.setdefault(holding.slice.key.name, []).append(holding.slice)
        new: dict[str, Held] = {}
        for holding in operation.holdings:
            label, beside = holding.slice.label, by_key.setdefault(holding.slice.key.name, [])
            if label not in known:
                _refuse_overlap(holding.slice, beside)
                new[label] = Held(holding, self.version)
                known[label] = holding
                beside.append(holding.slice)
            elif known[label] != holding:
                raise Refusal("mismatch", f"{label} is held as {known[label]}, not as {holding}")
        self.held.update(new)
        return Done(self.version)

    def set(self, operation: ops.Set) -> Answer:
        pairs = [(self.find(update.where), update) for update in operation.updates]
        checked = [(held, held.check_update(update)) for held, update in pairs]
        self.version += 1
        for held, one in checked:
            held.overwrite(one, self.version)
        return Done(self.version)

    def push(self, operation: ops.Push | ops.PushPull) -> Answer:
        checked = [(held, [one]) for held, one in self.check(operation.updates)]
        self.check_terms([held for held, _ in checked], operation.shaping, operation.rates)
        if isinstance(operation, ops.PushPull):
            self.pull(operation)  # what cannot be read is refused before anything is changed
        self.apply(checked, operation.shaping, operation.rates)
        return Done(self.version)

    def pull(self, operation: ops.Pull | ops.PushPull) -> Answer:
        found = tuple(self.find(wanted.where).read(wanted, self.version) for wanted in operation.wanted)
        return Pulled(self.version, found)

    def get_state(self, operation: ops.GetState) -> Answer:
        state = {name: array.view() for name, array in self.find(operation.where).state.items()}
        for array in state.values():
            array.flags.writeable = False
        return UpdaterState(self.version, state)

    def set_state(self, operation: ops.SetState) -> Answer:
        self.find(operation.where).keep(operation.state)
        return Done(self.version)

    # ---- what pushes and commits share

    def check(self, updates: Iterable[ops.Update]) -> list[tuple[Held, Contribution]]:
        """Find the slices of `updates`, and see that they fit."""
        pairs = [(self.find(update.where), update) for update in updates]
        return [(held, held.check_addition(update)) for held, update in pairs]

    def check_terms(self, held: Iterable[Held], shaping: ops.Shaping, rates: tuple[float, ...]) -> None:
        """See that these slices can be updated on these terms."""
        for one in held:
            one.check_shaping(shaping)
            one.check_rates(rates)

    def apply(
        self,
        pairs: Sequence[tuple[Held, Sequence[Contribution]]],
        shaping: ops.Shaping,
        rates: tuple[float, ...],
        expendable: bool = False,
    ) -> None:
        """Update slices by the sums of their contributions: the next version. All has been checked. If `expendable`,
        the contributions are not needed afterwards, and a sum may be put in the place of the first of them."""
        self.version += 1
        try:
            with np.errstate(all="ignore"):  # numbers that overflow are the model's own affair
                for held, parts in pairs:
                    self._apply(held, parts, shaping, rates, expendable)
        except Exception as error:
            self.broken = error
            raise

    def limit(self, limits: tuple[float, float], run: str) -> None:
        """Keep the values of a run, whose keys are named ``run/...``, within `limits`, also where nothing was given for
        them."""
        for held in self.held.values():
            if held.holding.slice.key.name.startswith(f"{run}/"):
                held.limit(limits, self.version)

    def _apply(
        self,
        held: Held,
        parts: Sequence[Contribution],
        shaping: ops.Shaping,
        rates: tuple[float, ...],
        expendable: bool,
    ) -> None:
        dense = [part.values for part in parts if part.rows is None]
        fitting = [values for values in dense if values.dtype == held.dtype]
        borrowed = None
        if not dense or (len(parts) == 1 and fitting and is_plain(shaping)):
            room = None  # rows are few, and a single gradient is taken as it is
        elif expendable and fitting:
            room = fitting[0]
        else:
            room = borrowed = self.pool.take(held.values.shape, held.dtype)
        held.apply(parts, shaping, rates, self.version, room)
        if borrowed is not None:
            self.pool.give_back(borrowed)


def _refuse_overlap(new: Slice, others: Iterable[Slice]) -> None:
    """`others` are slices of a key of the same name."""
    for old in others:
        if old.key != new.key:
            raise Refusal("mismatch", f"{new.key.name} is held as {old.key}, not as {new.key}")
        if old.start < new.stop and new.start < old.stop:
            raise Refusal("mismatch", f"{new.label} overlaps {old.label}, which is held already: remove that first")
