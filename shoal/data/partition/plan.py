"""The plan that a manifest records: how rows were divided, and in which shards a key is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pydantic

from shoal.data.manifest import Manifest
from shoal.data.partition.cuts import Placed
from shoal.data.partition.hashing import hash_values
from shoal.data.partition.sample import line_of


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Border(_Frozen):
    """Between two shards: `rows` of the rows with this value of the line (a hash or a key) lie before it, None: all."""

    value: int | float | str | None
    rows: int | None


class HeavyKey(_Frozen):
    """A key that has more rows than a shard may be out of balance, and the shards over which it is spread."""

    key: Any
    rows: int
    shards: tuple[int, ...]


class Plan(_Frozen):
    """`by` and `column` as in `--partition`. `skew` is the rows of the largest shard over the mean; `plain_rows` are
    the rows that the shards would have had, had each key gone to the shard ``hash % shards``."""

    by: str
    column: str | None = None
    shards: int
    keep_keys: bool = False
    borders: tuple[Border, ...] = ()
    heavy: tuple[HeavyKey, ...] = ()
    skew: float = 1.0
    plain_rows: tuple[int, ...] = ()

    @property
    def plain_skew(self) -> float | None:
        """The skew that plain hashing would have given, where there are keys."""
        return skew_of(self.plain_rows) if self.plain_rows else None

    @classmethod
    def of(cls, manifest: Manifest) -> Plan:
        """The plan that a manifest records."""
        return cls.model_validate(manifest.partition)


def border_of(placed: Placed) -> Border:
    """As the manifest records it."""
    return Border(value=placed.cut.value, rows=None if placed.of_value == placed.value_rows else placed.of_value)


def shards_of(plan: Plan, key: Any) -> tuple[int, ...]:
    """The shards that may hold rows with `key`, for `key` and `range`; for the others any may.

    Give a key of the column's own type: 7 and 7.0 and "7" are different keys.
    """
    if plan.by not in ("key", "range"):
        return tuple(range(plan.shards))
    import pyarrow as pa

    values = key if isinstance(key, pa.Array) else pa.array([key])
    value = int(hash_values(values)[0]) if plan.by == "key" else line_of(values)[0].as_py()
    return shards_of_value(plan.borders, value)


def shards_of_value(borders: Sequence[Border], value: Any) -> tuple[int, ...]:
    """The shards on either side of which borders lie: with a value of the line instead of a key."""
    first = sum(_before(border, value) or (border.value == value and border.rows == 0) for border in borders)
    last = sum(_before(border, value) or (border.value == value and border.rows is not None) for border in borders)
    return tuple(range(first, last + 1))


def _before(border: Border, value: Any) -> bool:
    """Whether all rows with `value` come after the value of the border; null comes last."""
    if border.value is None or border.value == value:
        return False
    return bool(value is None or border.value < value)


def skew_of(counts: Sequence[int]) -> float:
    """The largest over the mean."""
    total = sum(counts)
    return max(counts) * len(counts) / total if total else 1.0
