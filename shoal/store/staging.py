"""Parts of transactions that are kept, unapplied, until they are committed or dropped; and their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.store.sums import Contribution

Array = npt.NDArray[Any]


class Pool:
    """Memory that is used again: fresh memory costs as much as the copy that is put into it."""

    def __init__(self) -> None:
        self._free: dict[tuple[tuple[int, ...], str], list[Array]] = {}
        self._lent: dict[int, Array] = {}

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array with anything in it."""
        free = self._free.get((shape, dtype.str))
        return free.pop() if free else np.empty(shape, dtype)

    def give_back(self, array: Array) -> None:
        """It is not needed any more; nobody may hold on to it."""
        self._lent.pop(id(array), None)
        self._free.setdefault((array.shape, array.dtype.str), []).append(array)

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """As `take`, for somebody else to fill; `keep` knows it again."""
        array = self.take(shape, dtype)
        self._lent[id(array)] = array
        return array

    def keep(self, array: Array) -> Array:
        """An array of this pool with these values: a copy, or the very array if it was lent for that."""
        if self._lent.pop(id(array), None) is not None:
            return array
        kept = self.take(array.shape, array.dtype)
        np.copyto(kept, array)
        return kept


Part = dict[str, Contribution]  # by the label of the slice


class Staging:
    """By transaction and number, the parts that are staged."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.transactions: dict[str, dict[int, Part]] = {}

    def stage(self, transaction: str, part: int, updates: Part) -> None:
        """Keep copies of `updates`; the same part of before is thrown away."""
        parts = self.transactions.setdefault(transaction, {})
        self._free(parts.pop(part, {}))
        parts[part] = {label: self._kept(one) for label, one in updates.items()}

    def _kept(self, one: Contribution) -> Contribution:
        if one.rows is not None:  # their number differs each time: nothing to be used again
            return Contribution(one.values.copy(), one.rows.copy())
        return Contribution(self.pool.keep(one.values))

    def missing(self, transaction: str, parts: tuple[int, ...]) -> list[int]:
        """Those of `parts` that are not staged."""
        staged = self.transactions.get(transaction, {})
        return [part for part in parts if part not in staged]

    def contributions(self, transaction: str, parts: tuple[int, ...]) -> dict[str, list[Contribution]]:
        """By slice, what `parts` say about it, in order of their numbers. All must be staged."""
        found: dict[str, list[Contribution]] = {}
        for part in sorted(set(parts)):
            for label, one in self.transactions[transaction][part].items():
                found.setdefault(label, []).append(one)
        return found

    def drop(self, transaction: str, part: int | None = None) -> None:
        """Throw away one part, or all."""
        parts = self.transactions.get(transaction, {})
        for number in list(parts) if part is None else [part]:
            self._free(parts.pop(number, {}))
        if not parts:
            self.transactions.pop(transaction, None)

    def remove(self, label: str) -> None:
        """Throw away what all parts say about one slice."""
        for parts in self.transactions.values():
            for part in parts.values():
                if (one := part.pop(label, None)) is not None:
                    self._free({label: one})

    def _free(self, part: Part) -> None:
        for one in part.values():
            if one.rows is None:
                self.pool.give_back(one.values)
