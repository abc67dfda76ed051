"""`normalise`: numbers get mean 0 and standard deviation 1, over the whole source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.preparing.builtin.base import BuiltinStep, builtin_jobs
from shoal.data.preparing.builtin.moments import Moments, is_number
from shoal.data.preparing.step import At, column, columns


@builtin_jobs.add("normalise")
class Normalise(BuiltinStep):
    """``normalise:columns=a,b``, or all columns of floating-point numbers. They become float32; a column that is the
    same everywhere becomes 0. Mean and deviation are in the manifest."""

    name = "normalise"
    options: Mapping[str, str] = MappingProxyType(
        {"columns": "the columns, separated by commas (default: all of floating-point numbers)"}
    )
    measures = True

    def measure(self, batch: Any) -> Any:
        import pyarrow as pa

        names = self.texts("columns") or [one.name for one in batch.schema if pa.types.is_floating(one.type)]
        columns(names, batch.schema, "job normalise")
        for name in names:
            if not is_number(batch.schema.field(name).type):
                raise ConfigError(f"job normalise: column {name!r} is {batch.schema.field(name).type}, not a number")
        if not names:
            raise ConfigError("job normalise: no column has floating-point numbers: name some with columns=a,b")
        return {name: Moments.of(column(batch, name, "job normalise")).to_plain() for name in names}

    def merge(self, measured: Iterable[Any]) -> Any:
        whole: dict[str, Moments] = {}
        for part in measured:
            for name, plain in part.items():
                whole[name] = whole.get(name, Moments()) + Moments(**plain)
        return {name: moments.to_plain() for name, moments in whole.items()}

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for name, plain in (learned or {}).items():
            moments = Moments(**plain)
            values = batch.column(name).cast(pa.float64())
            scaled = pc.divide(pc.subtract(values, moments.mean), moments.std or 1.0).cast(pa.float32())
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, pa.field(name, pa.float32()), scaled)
        return (batch,)
