"""The first stage: some of the source is read, mapped, combined, and spilled in runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shoal.data.formats.base import Split
from shoal.data.preparing.grouping import groups_of
from shoal.data.preparing.job import join
from shoal.data.preparing.layout import Layout, sorted_table
from shoal.data.preparing.rejects import Rejects
from shoal.data.preparing.rows import mapped
from shoal.data.preparing.spill import read_schema
from shoal.data.preparing.step import Step
from shoal.data.preparing.task import Result, Task


@dataclass(frozen=True)
class SourceTask(Task):
    """What all that read the source have. `number` is its place among them."""

    number: int
    splits: tuple[Split, ...]
    schema: bytes
    steps: tuple[Step, ...]
    learned: tuple[Any, ...]
    bad_records: str

    @property
    def nbytes(self) -> int:
        return sum(split.nbytes for split in self.splits)

    @property
    def about(self) -> str:
        first = self.splits[0]
        more = f" and {len(self.splits) - 1} more" if len(self.splits) > 1 else f" from {first.start}"
        return f"{self.name} ({first.place}{more})"

    def rows(self, rejects: Rejects) -> Iterator[tuple[int, Any]]:
        return mapped(self.splits, read_schema(self.schema), self.steps, self.learned, self.number, rejects)


@dataclass(frozen=True)
class MeasureTask(SourceTask):
    """Measures for the step `step` what comes out of `steps`."""

    step: Step

    def run(self) -> Result:
        rejects, rows, measured = Rejects(self.bad_records), 0, []
        for read, batch in self.rows(rejects):
            rows += read
            if batch is not None:
                measured.append(self.step.measure(batch))
                if len(measured) == 16:
                    measured = [self.step.merge(measured)]
        return {"rows": rows, "measured": self.step.merge(measured) if measured else None}


@dataclass(frozen=True)
class MapTask(SourceTask):
    """Spills runs of at most about `run_bytes`. `combiner` is given the rows of each key of a run."""

    layout: Layout
    combiner: Step | None
    run_bytes: int

    def run(self) -> Result:
        rejects = Rejects(self.bad_records)
        runs: list[Result] = []
        rows, batches, nbytes = 0, [], 0
        for read, batch in self.rows(rejects):
            rows += read
            if batch is not None:
                batches.append(batch)
                nbytes += batch.nbytes
            if nbytes >= self.run_bytes:
                runs.append(self._spill(len(runs), batches))
                batches, nbytes = [], 0
        if batches:
            runs.append(self._spill(len(runs), batches))
        rejects.write(self.work / f"{self.name}.rejects.jsonl")
        return {"rows": rows + rejects.unread, "runs": runs, "rejected": len(rejects.found)}

    def _spill(self, run: int, batches: list[Any]) -> Result:
        import pyarrow as pa

        last = self.steps[-1].name if self.steps else "the source"
        table = join([pa.Table.from_batches([batch]) for batch in batches], f"map of {last}")
        batches.clear()
        table = plain_columns(table)
        if self.combiner is not None and self.layout.keyed is not None:
            table, key, _ = sorted_table(table, self.layout.keyed)
            table, _ = self.combiner.combine(groups_of(table, key))
        return self.layout.spill(self.work / f"{self.name}-{run}.arrow", table)


def plain_columns(table: Any) -> Any:
    """Without dictionaries, which belong to one batch."""
    import pyarrow as pa

    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    schema = pa.schema(fields, table.schema.metadata)
    return table if schema.equals(table.schema) else table.cast(schema)
