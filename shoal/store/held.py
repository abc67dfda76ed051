"""One slice as a server holds it: values, what its updater keeps, and which version changed what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ConfigError
from shoal.store.answers import Found
from shoal.store.operations import UNSHAPED, Holding, Shaping, Update, Wanted
from shoal.store.refusal import Refusal
from shoal.store.sums import Contribution, add_repeated, blocks_of_sum, gather_rows, is_plain
from shoal.store.updaters import make_updater

Array = npt.NDArray[Any]


class Held:
    """Values of a slice and all that belongs to them. Whatever can go wrong goes wrong in `check_…` and `read`, before
    anything is changed."""

    def __init__(self, holding: Holding, version: int) -> None:
        self.holding = holding
        piece = holding.slice
        try:
            self.updater = make_updater(holding.updater, holding.options)
        except (ConfigError, TypeError, ValueError) as error:
            raise Refusal("mismatch", f"{piece.label}: {error}") from None
        self.dtype = np.dtype(piece.key.dtype)
        if self.updater.looks_at_whole and piece.units != piece.key.units:
            raise Refusal("mismatch", f"updater {holding.updater!r} needs whole arrays, and {piece.label} is a part")
        if self.updater.only_floats and self.dtype.kind != "f":
            raise Refusal("mismatch", f"updater {holding.updater!r} needs floats, and {piece.label} is {self.dtype}")
        self.values: Array = np.zeros(piece.shape, self.dtype)
        self.state: dict[str, Array] = {}
        self.version = version  # that last changed something
        self._within: tuple[float, float] | None = None  # limits in which all values are known to be
        self.row_versions: Array | None = np.zeros(piece.units, np.int64) if piece.sparse else None

    @property
    def label(self) -> str:
        return self.holding.slice.label

    # ---- what a client may ask

    def check_update(self, update: Update) -> Contribution:
        """Return what `update` says in terms of this slice; values are not copied. Raises `Refusal`."""
        piece, values = self.holding.slice, update.values
        if update.coding is not None:
            raise Refusal("mismatch", f"what is given to {piece.label} has not been decoded")
        if not np.can_cast(values.dtype, self.dtype, "same_kind"):
            raise Refusal("mismatch", f"{piece.label} holds {self.dtype}, and was given {values.dtype}")
        if update.rows is None:
            if values.size != self.values.size:
                raise Refusal("mismatch", f"{piece.label} holds {self.values.size} values, and was given {values.size}")
            return Contribution(values if values.shape == piece.shape else values.reshape(piece.shape))
        rows = self._check_rows(update.rows)
        expected = len(rows) * int(np.prod(piece.key.unit_shape))
        if values.size != expected:
            raise Refusal("mismatch", f"{len(rows)} rows of {piece.label} are {expected} values, not {values.size}")
        return Contribution(values.reshape(len(rows), *piece.key.unit_shape), rows)

    def check_addition(self, update: Update) -> Contribution:
        """As `check_update`, for values that are added up: rows ascending, each once."""
        one = self.check_update(update)
        if one.rows is None:
            return one
        rows, values = add_repeated(one.rows, one.values)
        return Contribution(values, rows)

    def _check_rows(self, rows: Array) -> Array:
        """Numbers in the table -> numbers in this slice."""
        piece = self.holding.slice
        if not piece.sparse:
            raise Refusal("mismatch", f"{piece.label} is dense: it has no rows to be named")
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise Refusal("mismatch", f"rows of {piece.label} are named by a list of whole numbers")
        if len(rows) and not piece.start <= int(rows.min()) <= int(rows.max()) < piece.stop:
            raise Refusal("mismatch", f"rows {int(rows.min())} to {int(rows.max())} are not all in {piece.label}")
        return rows.astype(np.int64) - piece.start

    def check_shaping(self, shaping: Shaping) -> None:
        """Raise `Refusal` where whole numbers would be divided or scaled."""
        if self.unshaped:
            return
        if self.dtype.kind != "f" and not (is_plain(shaping) and shaping.limits is None):
            raise Refusal("mismatch", f"{self.label} holds {self.dtype}: it cannot be divided or clipped")

    def check_rates(self, rates: tuple[float, ...]) -> None:
        """Raise `Refusal` where rates are given and this slice's is not among them."""
        if self.unshaped:
            return
        if rates and not 0 <= self.holding.group < len(rates):
            raise Refusal("mismatch", f"{self.label} needs rate {self.holding.group} of the {len(rates)} given")

    @property
    def unshaped(self) -> bool:
        """Whether it is updated as given, whatever is done to gradients beside it."""
        return self.holding.group == UNSHAPED

    # ---- changes

    def overwrite(self, update: Contribution, version: int) -> None:
        """Put values in the place of those that are there."""
        self._within = None
        if update.rows is None:
            self.values[...] = update.values
        else:
            self.values[update.rows] = update.values
        self._changed(update.rows, version)

    def apply(
        self,
        parts: Sequence[Contribution],
        shaping: Shaping,
        rates: tuple[float, ...],
        version: int,
        room: Array | None = None,
    ) -> None:
        """Let the updater apply the shaped sum of `parts`. There may be `room` for the sum: an array of the slice's
        shape and dtype, which may be that of one of the parts."""
        if self.unshaped:
            shaping, rates = Shaping(), ()
        rows = gather_rows(parts)
        if len(parts) == 1 and is_plain(shaping) and parts[0].values.dtype == self.dtype:
            gradient = parts[0].values
        else:
            shape = self.values.shape if rows is None else (len(rows), *self.values.shape[1:])
            gradient = np.empty(shape, self.dtype) if room is None or rows is not None else room
            for where, block in blocks_of_sum(parts, rows, shape, self.dtype, shaping):
                gradient[where] = block
        rate = (rates[self.holding.group] if rates else self.updater.rate) * shaping.rate_scale
        self.updater.update(self.values, gradient, self.state, rate, rows)
        if shaping.limits is not None and rows is None:
            np.clip(self.values, *shaping.limits, out=self.values)
        elif shaping.limits is not None:
            self.values[rows] = np.clip(self.values[rows], *shaping.limits)
        self._changed(rows, version)

    def limit(self, limits: tuple[float, float], version: int) -> None:
        """Keep all values within `limits`, those too that no update has come for; of a table, rows that nobody has
        touched stay as they are, whatever is done to others."""
        if self.unshaped or self.row_versions is not None or self._within == limits or self.dtype.kind != "f":
            return
        if self.values.size and (self.values.min() < limits[0] or self.values.max() > limits[1]):
            np.clip(self.values, *limits, out=self.values)
            self._changed(None, version)
        self._within = limits

    def _changed(self, rows: Array | None, version: int) -> None:
        self.version = version
        if self.row_versions is not None:
            self.row_versions[slice(None) if rows is None else rows] = version

    def keep(self, state: Mapping[str, Array]) -> None:
        """Replace what the updater keeps. What has an entry for each value lies as the values do, unless the updater
        looks at whole arrays, and at these in shapes of their own."""
        shape, alike = self.holding.slice.key.shape, not self.updater.looks_at_whole
        self.state = {
            name: (array.reshape(self.values.shape) if alike and array.shape == shape else array).copy()
            for name, array in state.items()
        }

    # ---- reading

    def squares(self, parts: Sequence[Contribution], shaping: Shaping) -> float:
        """Sum of the squares of the shaped sum of `parts`; none of what is not shaped."""
        if self.unshaped:
            return 0.0
        rows = gather_rows(parts)
        shape = self.values.shape if rows is None else (len(rows), *self.values.shape[1:])
        total = 0.0
        for _, block in blocks_of_sum(parts, rows, shape, self.dtype, shaping):
            wide = block.astype(np.float64)
            total += float(np.multiply(wide, wide, out=wide).sum())  # not np.dot: its threads cost more than they bring
        return total

    def read(self, wanted: Wanted, version: int) -> Found:
        """What `wanted` asks for; `version` is the shard's. Raises `Refusal`."""
        piece = self.holding.slice
        start, stop = wanted.span or (piece.start, piece.stop)
        if not piece.start <= start <= stop <= piece.stop:
            raise Refusal("mismatch", f"[{start}:{stop}] is not within {piece.label}")
        rows = None if wanted.rows is None else self._check_rows(wanted.rows)
        if rows is not None and wanted.span is not None:
            raise Refusal("mismatch", f"{piece.label} was asked for rows and for a span: give one of them")
        if wanted.since is not None:
            if self.version <= wanted.since:
                return Found(wanted.where, None, None, version)
            if self.row_versions is not None:
                if rows is None:
                    low, high = start - piece.start, stop - piece.start
                    rows = low + np.flatnonzero(self.row_versions[low:high] > wanted.since)
                else:
                    rows = rows[self.row_versions[rows] > wanted.since]
                if not len(rows):
                    return Found(wanted.where, None, None, version)
        if rows is not None:
            return Found(wanted.where, self.values[rows], rows + piece.start, version)
        view = self.values[start - piece.start : stop - piece.start]
        view.flags.writeable = False
        return Found(wanted.where, view, None, version)
