"""Between the stages: where in each spill the pieces of the line begin, and pieces that become new spills."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.data.partition.cuts import Placed
from shoal.data.partition.sample import Line
from shoal.data.preparing.grouping import groups_of
from shoal.data.preparing.job import JobError, join
from shoal.data.preparing.layout import Layout, sort_order, spill_dealt
from shoal.data.preparing.spill import KEY, LINE, OWN, Slice, Spill, read_schema, read_slices
from shoal.data.preparing.step import At, Step, column
from shoal.data.preparing.task import Result, Task

Piece = tuple[
    tuple[Slice, int], ...
]  # slices of spills, in the order of the spills, each with the number of its schema


@dataclass(frozen=True)
class LocateTask(Task):
    """Finds `values` in the lines of spills: the positions ``[start, stop)`` of each value in each."""

    lines: tuple[Spill, ...]
    values: tuple[Any, ...]

    def run(self) -> Result:
        spans = []
        for spill in self.lines:
            line = Line.of(column(spill.slice(0, spill.rows).read(read_schema(spill.schema)), LINE, "the line"))
            spans.append([line.span(value) for value in self.values])
        return {"spans": spans}


@dataclass(frozen=True)
class RegroupTask(Task):
    """Reads a piece of the line, reduces it by key (if there is a `reducer`), maps it by `steps`, and spills it in
    `layout`; without a layout rows are dealt out back and forth, the first of them being row `first` of all."""

    piece: Piece
    schemas: tuple[bytes, ...]
    key: str
    reducer: Step | None
    steps: tuple[Step, ...]
    learned: tuple[Any, ...]
    keep_key: bool
    layout: Layout | None
    first: int
    shards: int
    number: int

    def run(self) -> Result:
        table = merged(self.piece, self.schemas)
        rows = table.num_rows
        if self.reducer is not None:
            table = self._reduced(table)
        if not table.num_rows:
            return {"rows": rows, "runs": []}
        place = self.work / f"{self.name}.arrow"
        if self.layout is not None:
            return {"rows": rows, "runs": [self.layout.spill(place, table)]}
        table = table.drop_columns([name for name in OWN if name in table.column_names])
        return {"rows": rows, "runs": [spill_dealt(place, table, self.first, self.shards, back_and_forth=True)]}

    def _reduced(self, table: Any) -> Any:
        import pyarrow as pa

        assert self.reducer is not None
        groups = groups_of(table, self.key)
        made, numbers = self.reducer.reduce(groups)
        if self.steps:
            return self._mapped(made)
        if self.keep_key and made.num_rows:
            made = made.append_column(KEY, groups.keys.take(pa.array(groups.starts[numbers])))
        return made

    def _mapped(self, table: Any) -> Any:
        import pyarrow as pa

        from shoal.data.preparing.rows import map_all

        try:
            made = [
                pa.Table.from_batches([one])
                for batch in table.combine_chunks().to_batches()
                for one in map_all(batch, self.steps, self.learned, At(self.number, 0))
            ]
        except Exception as error:
            if isinstance(error, ValueError | TypeError | KeyError | AttributeError | ArithmeticError):
                raise JobError(self.steps[0].name, "map, after reducing,", error) from error
            raise
        return join(made, f"map of {self.steps[-1].name}") if made else table.slice(0, 0)


def merged(piece: Piece, schemas: Sequence[bytes]) -> Any:
    """All rows of a piece, sorted by the line where there is one; equal ones in the order of the spills."""
    import pyarrow as pa

    own = [read_schema(packed) for packed in schemas]
    whole = common_schema(own)
    table = read_slices(((part, own[number]) for part, number in piece), whole).combine_chunks()
    if LINE not in table.column_names or not table.num_rows:
        return table
    return table.take(pa.array(sort_order(column(table, LINE, "the line"))))


def common_schema(schemas: Sequence[Any]) -> Any:
    """What all spills fit into. Raises `UserError` where columns differ."""
    import pyarrow as pa

    from shoal.core.errors import UserError

    first = schemas[0]
    for other in schemas[1:]:
        if set(other.names) != set(first.names):
            odd = sorted(set(other.names) ^ set(first.names))
            raise UserError(
                f"the job returned rows with and without the column {odd[0]!r}: return the same columns always"
            )
    try:
        return pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        raise UserError(f"the job returned columns of different types: {error}") from None


def pieces(spills: Sequence[Spill], numbers: Sequence[int], cuts: Sequence[Placed]) -> list[Piece]:
    """The pieces between cuts that are in order: one more than there are cuts, and some may be empty. `numbers` are
    those of the schemas of the spills."""
    edges = [(0,) * len(spills), *(cut.positions for cut in cuts), tuple(spill.rows for spill in spills)]
    return [
        tuple(
            (spill.slice(start, stop), number)
            for spill, number, start, stop in zip(spills, numbers, before, after, strict=True)
            if stop > start
        )
        for before, after in itertools.pairwise(edges)
    ]
