"""`select`: some of the columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.preparing.builtin.base import BuiltinStep, builtin_jobs
from shoal.data.preparing.builtin.moments import Moments, is_number
from shoal.data.preparing.step import At, columns


@builtin_jobs.add("select")
class Select(BuiltinStep):
    """``select:columns=a,b`` keeps these, ``select:drop=c`` all but these. ``select:variance=0.01`` leaves out columns
    of numbers that vary no more than that, ``select:missing=0.5`` columns of which more than that part is missing; what
    is named in ``keep`` stays."""

    name = "select"
    options: Mapping[str, str] = MappingProxyType(
        {
            "columns": "keep these, in this order",
            "drop": "leave these out",
            "variance": "leave out columns of numbers whose variance is not above this",
            "missing": "leave out columns of which more than this part is missing (from 0 to 1)",
            "keep": "never left out",
        }
    )

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        if not {"columns", "drop", "variance", "missing"} & set(given):
            raise ConfigError("job select: say what to keep: columns=a,b, drop=c, variance=0.01 or missing=0.5")
        self.measures = bool({"variance", "missing"} & set(given))  # type: ignore[misc] # this one by its options
        self._variance, self._missing = self.number("variance", -1.0), self.number("missing", 1.0)

    def _named(self, batch: Any) -> Any:
        columns((*self.texts("columns"), *self.texts("drop"), *self.texts("keep")), batch.schema, "job select")
        names = self.texts("columns") or batch.schema.names
        return batch.select([name for name in names if name not in self.texts("drop")])

    def measure(self, batch: Any) -> Any:
        found = {}
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if is_number(values.type):
                found[name] = Moments.of(values).to_plain() | {"number": True}
            else:
                missing = Moments(count=len(values) - values.null_count, missing=values.null_count)
                found[name] = missing.to_plain() | {"number": False}
        return found

    def merge(self, measured: Iterable[Any]) -> Any:
        whole: dict[str, Any] = {}
        for part in measured:
            for name, plain in part.items():
                number = plain["number"]
                moments = Moments(**{key: value for key, value in plain.items() if key != "number"})
                if name in whole:
                    before = {key: value for key, value in whole[name].items() if key != "number"}
                    if number:
                        moments = Moments(**before) + moments
                    else:
                        moments = Moments(
                            count=before["count"] + moments.count, missing=before["missing"] + moments.missing
                        )
                whole[name] = moments.to_plain() | {"number": number}
        return whole

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        chosen = self._named(batch)
        poor = {name for name, plain in (learned or {}).items() if self._is_poor(plain)} - set(self.texts("keep"))
        left = [name for name in chosen.schema.names if name not in poor]
        if not left:
            raise ConfigError("job select leaves no column: give a lower variance or a higher missing")
        return (chosen.select(left),)

    def _is_poor(self, plain: Mapping[str, Any]) -> bool:
        total = plain["count"] + plain["missing"]
        variance = plain["squares"] / plain["count"] if plain["count"] else 0.0
        return bool((plain["number"] and variance <= self._variance) or plain["missing"] > self._missing * total)
