"""`convert`: columns become other types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.preparing.builtin.base import BuiltinStep, builtin_jobs
from shoal.data.preparing.step import At, columns


@builtin_jobs.add("convert")
class Convert(BuiltinStep):
    """``convert:float32=a,b:int8=c``: the types are pyarrow's names. A value that does not fit is a bad record."""

    name = "convert"

    def __init__(self, given: Mapping[str, str]) -> None:
        import pyarrow as pa

        self.options = dict.fromkeys(given, "columns")  # every type is one
        super().__init__(given)
        self._types = {}
        for kind in given:
            try:
                pa.type_for_alias(kind)
            except ValueError:
                raise ConfigError(
                    f"job convert: {kind!r} is no type: give e.g. float32, int64, string, date32"
                ) from None
            self._types.update(dict.fromkeys(self.texts(kind), kind))
        if not self._types:
            raise ConfigError("job convert: say which columns become what, e.g. --job convert:float32=a,b:int8=c")

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        import pyarrow as pa

        columns(tuple(self._types), batch.schema, "job convert")
        fields = [
            field.with_type(pa.type_for_alias(self._types[field.name])) if field.name in self._types else field
            for field in batch.schema
        ]
        return (batch.cast(pa.schema(fields)),)
