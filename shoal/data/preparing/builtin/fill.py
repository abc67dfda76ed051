"""`fill`: values that are missing get one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.preparing.builtin.base import BuiltinStep, builtin_jobs
from shoal.data.preparing.builtin.moments import Moments, is_number
from shoal.data.preparing.step import At, column, columns

_MEAN, _MOST_FREQUENT = "mean", "most-frequent"
_COUNTED = 1 << 16  # different values of a column are counted on the way: enough for all but the rarest


@builtin_jobs.add("fill")
class Fill(BuiltinStep):
    """``fill:columns=age,hour:value=mean``: empty values, empty texts and NaN become the mean of the others over the
    whole source (of whole numbers, the nearest), their most frequent one (``most-frequent``), or what is stated, a
    number or a text. What was filled in is in the manifest."""

    name = "fill"
    options: Mapping[str, str] = MappingProxyType(
        {
            "columns": "the columns, separated by commas",
            "value": "mean (the default), most-frequent, or the value itself",
        }
    )

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self._columns, self._value = self.required("columns"), given.get("value", _MEAN)
        self.measures = self._value in (_MEAN, _MOST_FREQUENT)  # type: ignore[misc] # this one by its options

    def measure(self, batch: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        columns(self._columns, batch.schema, "job fill")
        found: dict[str, Any] = {}
        for name in self._columns:
            values = column(batch, name, "job fill")
            if self._value == _MEAN:
                if not is_number(values.type):
                    raise ConfigError(
                        f"job fill: column {name!r} is {values.type}, which has no mean: give value=most-frequent, or "
                        "the value itself"
                    )
                found[name] = Moments.of(values).to_plain()
            else:
                present = values.filter(pc.invert(_gaps(values)))
                # a count by what JSON can hold
                counted = pc.value_counts(present if is_number(present.type) else present.cast(pa.string()))
                found[name] = list(
                    zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
                )
        return found

    def merge(self, measured: Iterable[Any]) -> Any:
        if self._value == _MEAN:
            moments: dict[str, Moments] = {}
            for part in measured:
                for name, plain in part.items():
                    moments[name] = moments.get(name, Moments()) + Moments(**plain)
            return {name: one.to_plain() for name, one in moments.items()}
        counts: dict[str, Counter[Any]] = {}
        for part in measured:
            for name, pairs in part.items():
                counts.setdefault(name, Counter()).update(dict(pairs))
        return {name: [list(pair) for pair in _frequent(counted)] for name, counted in counts.items()}

    def lesson(self, learned: Any) -> Any:
        return {name: self._filling(name, learned) for name in self._columns}

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        import pyarrow.compute as pc

        columns(self._columns, batch.schema, "job fill")
        for name in self._columns:
            values = column(batch, name, "job fill")
            gaps = _gaps(values)
            if pc.any(gaps).as_py():
                filled = pc.if_else(gaps, self._scalar(name, values.type, learned), values)
                batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), filled)
        return (batch,)

    def _filling(self, name: str, learned: Any) -> Any:
        """What gaps of a column are filled with."""
        if not self.measures:
            return self._value
        known = (learned or {}).get(name)
        if not known or (self._value == _MEAN and not known["count"]):
            raise ConfigError(
                f"job fill: column {name!r} has no value at all: state one, e.g. value=0, or leave it out"
            )
        return known["mean"] if self._value == _MEAN else known[0][0]

    def _scalar(self, name: str, kind: Any, learned: Any) -> Any:
        import pyarrow as pa

        value = self._filling(name, learned)
        try:
            if isinstance(value, float) and pa.types.is_integer(kind):
                value = round(value)
            return pa.scalar(value).cast(kind)
        except (pa.ArrowException, ValueError):
            raise ConfigError(f"job fill: value={value} is no {kind}, which column {name!r} has") from None


def _gaps(values: Any) -> Any:
    """Where a value is missing: null, NaN, or an empty text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = pc.is_null(values, nan_is_null=True)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        missing = pc.or_(missing, pc.equal(values, "").fill_null(False))
    return missing


def _frequent(counted: Counter[Any]) -> list[tuple[Any, int]]:
    """The most frequent first; of equally frequent ones the first in order."""
    return sorted(counted.items(), key=lambda pair: (-pair[1], str(pair[0])))[:_COUNTED]
