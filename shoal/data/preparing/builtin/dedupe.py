"""`dedupe`: of rows that are the same, the first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shoal.data.preparing.builtin.base import BuiltinStep, builtin_jobs
from shoal.data.preparing.step import Groups, columns


@builtin_jobs.add("dedupe")
class Dedupe(BuiltinStep):
    """``dedupe:by=id``: one row of each id, the first in the order of the source; without ``by``, of rows that are
    equal in all columns."""

    name = "dedupe"
    options: Mapping[str, str] = MappingProxyType({"by": "the columns by which rows are the same (default: all)"})
    keys = combines = reduces = True

    def key(self, batch: Any) -> Any:
        import pyarrow as pa

        names = columns(self.texts("by") or tuple(batch.schema.names), batch.schema, "job dedupe")
        if len(names) == 1:
            return names[0]
        return pa.StructArray.from_arrays([batch.column(name) for name in names], names=list(names))

    def combine(self, groups: Groups) -> tuple[Any, Any]:
        import numpy as np

        return groups.table.take(groups.starts), np.arange(len(groups))

    reduce = combine
