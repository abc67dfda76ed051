"""What a user gives, checked before it is sent: a mistake is named here, where it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import UserError
from shoal.store.directory import Declaration
from shoal.store.keys import SparseKey
from shoal.store.operations import Update

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Values for some rows of a table: ``Rows([3, 17], values)``, `values` of shape (2, …).

    `everywhere`: slices with none of these rows are updated, too, by no rows. So an updater that counts its steps has
    the same count on all servers, however the table is cut."""

    rows: npt.ArrayLike
    values: npt.ArrayLike
    everywhere: bool = False


@dataclass(frozen=True, eq=False)
class Cut:
    """What is given for a key, by slice: updates that have been made already, such as coded ones, one for each."""

    updates: tuple[Update, ...]


Given = npt.ArrayLike | Rows | Cut


def check_whole(declaration: Declaration, given: npt.ArrayLike) -> Array:
    """All units of a key, flat but for the shape of a row."""
    key = declaration.key
    array = np.ascontiguousarray(given)
    if array.size != key.units * int(np.prod(key.unit_shape)):
        raise UserError(f"key {key.name!r} has the shape {key.shape}, and was given an array of {array.shape}")
    return array.reshape(key.units, *key.unit_shape)


def check_cut(declaration: Declaration, given: Cut, labels: Sequence[str]) -> tuple[Update, ...]:
    """An update for each slice of a key, in the order of `labels`."""
    if [one.where for one in given.updates] != list(labels):
        raise UserError(f"key {declaration.key.name!r} is cut into {list(labels)}, and was given other slices")
    return given.updates


def check_numbers(declaration: Declaration, rows: npt.ArrayLike) -> Array:
    key = declaration.key
    if not isinstance(key, SparseKey):
        raise UserError(f"key {key.name!r} is dense, and has no rows to be named: declare it with sparse=True")
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise UserError(
            f"rows of {key.name!r} are named by a list of whole numbers, not by {numbers.dtype} {numbers.shape}"
        )
    numbers = numbers.astype(np.int64)
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < key.rows:
        named = f"{int(numbers.min())} to {int(numbers.max())}"
        raise UserError(f"key {key.name!r} has the rows 0 to {key.rows - 1}, and {named} were named")
    return numbers


def check_rows(declaration: Declaration, given: Rows) -> tuple[Array, Array]:
    rows = check_numbers(declaration, given.rows)
    unit_shape = declaration.key.unit_shape
    values = np.ascontiguousarray(given.values)
    if values.size != len(rows) * int(np.prod(unit_shape)):
        shape, name = (len(rows), *unit_shape), declaration.key.name
        raise UserError(f"{len(rows)} rows of {name!r} have the shape {shape}, not {values.shape}")
    return rows, values.reshape(len(rows), *unit_shape)


def check_out(declaration: Declaration, shape: tuple[int, ...], out: Array | None) -> Array:
    dtype = np.dtype(declaration.key.dtype)
    if out is None:
        return np.empty(shape, dtype)
    if out.dtype != dtype or out.shape != shape or not out.flags.c_contiguous or not out.flags.writeable:
        name = declaration.key.name
        raise UserError(f"{name!r} is read into a contiguous array of {dtype} {shape}, not of {out.dtype} {out.shape}")
    return out
