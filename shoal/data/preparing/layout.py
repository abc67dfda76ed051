"""How a run of rows is laid out before it is spilled, so that later each shard reads contiguous stretches of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core.errors import ConfigError
from shoal.data.partition.deal import grouped, round_robin, serpentine
from shoal.data.partition.hashing import hash_values
from shoal.data.partition.sample import SAMPLES, Line, Sample, line_of
from shoal.data.partition.scheme import Partition
from shoal.data.places import Place
from shoal.data.preparing.spill import KEY, LINE, Spill, write_spill
from shoal.data.preparing.step import Step, column, column_of
from shoal.data.preparing.task import Result

BY_HASH = "key"


@dataclass(frozen=True)
class Keyed:
    """By what rows are sorted or grouped: a column, or the key of a step; None: by nothing."""

    kind: str
    column: str | None
    step: Step | None

    @classmethod
    def for_partition(cls, partition: Partition, step: Step | None) -> Keyed:
        if partition.is_sorted and partition.column is None and step is None:
            raise ConfigError(
                f"--partition {partition.kind}: by which column? Give --partition {partition.kind}:COLUMN, or a job "
                "that has key(batch)"
            )
        return cls(partition.kind, partition.column, None if partition.column else step)

    def values(self, table: Any) -> tuple[str, Any]:
        """The column with the keys of a table, and the keys."""
        if KEY in table.schema.names:
            return KEY, column(table, KEY, "the key")
        if self.column is not None:
            return self.column, column(table, self.column, f"--partition {self.kind}:{self.column}")
        assert self.step is not None
        name, values = column_of(self.step, table)
        return name or KEY, values

    def line(self, keys: Any) -> Any:
        """The values of the line for these keys, as a `pyarrow.Array`."""
        import pyarrow as pa

        if self.kind == BY_HASH:
            return pa.array(hash_values(keys))
        try:
            return line_of(keys)
        except TypeError as error:
            raise ConfigError(f"--partition {self.kind}:{self.column or 'key'}: {error}") from None


def sorted_table(table: Any, keyed: Keyed) -> tuple[Any, str, Any]:
    """Sorted by the line (stable), with the line as a column; the name of the column of keys; the keys, sorted."""
    import pyarrow as pa

    if isinstance(table, pa.Table):
        table = table.combine_chunks()
    name, keys = keyed.values(table)
    line = keyed.line(keys)
    if name == KEY and KEY not in table.schema.names:
        table = table.append_column(KEY, keys)
    order = sort_order(line)
    line = line.take(pa.array(order))
    if LINE in table.schema.names:
        table = table.drop_columns([LINE])
    table = table.take(pa.array(order)).append_column(LINE, line)
    return table, name, column(table, name, "the key")


def sort_order(line: Any) -> Any:
    """A stable order of a line; nulls come last."""
    import pyarrow.compute as pc

    if not line.null_count and line.type.num_buffers == 2:
        return np.argsort(line.to_numpy(zero_copy_only=False), kind="stable")
    return pc.sort_indices(line).to_numpy()


@dataclass(frozen=True)
class Layout:
    """`keyed`: runs are sorted by it, and cut at places of its line, of which `samples` are noted. `deals`: the rows of
    each shard are put together. Neither: the order of the source is kept."""

    shards: int
    keyed: Keyed | None = None
    deals: bool = False
    samples: int = SAMPLES

    def spill(self, place: Place, table: Any) -> Result:
        """Write a run."""
        if self.keyed is not None:
            return spill_sorted(place, table, self.keyed, self.shards, self.samples)
        if self.deals:
            return spill_dealt(place, table, 0, self.shards, back_and_forth=False)
        return spill_plain(place, table)


def spill_sorted(place: Place, table: Any, keyed: Keyed, shards: int, samples: int) -> Result:
    """Write a run that is cut later at places of its line."""
    table, name, keys = sorted_table(table, keyed)
    line = column(table, LINE, "the line")
    spill = write_spill(place, table)
    import pyarrow as pa

    lines = write_spill(beside(place), pa.table({LINE: line}))
    sample = Sample.of(Line.of(line), samples, zlib.crc32(place.name.encode()))
    hashes = line.to_numpy() if keyed.kind == BY_HASH else hash_values(keys)
    plain = np.bincount((hashes % np.uint64(shards)).astype(np.int64), minlength=shards)
    return {
        **spill.to_plain(),
        "nbytes": table.nbytes,
        "lines": lines.to_plain(),
        "sample": [sample.values, sample.lower.tolist(), sample.upper.tolist()],
        "plain": plain.tolist(),
        "key": name,
    }


def spill_dealt(place: Place, table: Any, first: int, shards: int, *, back_and_forth: bool) -> Result:
    """Write a run whose rows are dealt out, those of each shard together. `first` is the number of its first row."""
    import pyarrow as pa

    deal = serpentine if back_and_forth else round_robin
    order, counts = grouped(deal(first, table.num_rows, shards), shards)
    table = table.take(pa.array(order)).combine_chunks()
    return {**write_spill(place, table).to_plain(), "nbytes": table.nbytes, "counts": counts.tolist()}


def spill_plain(place: Place, table: Any) -> Result:
    """Write a run in the order of the source."""
    return {**write_spill(place, table.combine_chunks()).to_plain(), "nbytes": table.nbytes}


def beside(place: Place) -> Place:
    """Where the line of a sorted spill lies."""
    parent, _, name = place.url.rpartition("/")
    return Place(f"{parent}/line-{name}", place.options)


def sample_of(result: Result) -> Sample:
    """The sample of a sorted spill."""
    values, lower, upper = result["sample"]
    return Sample(rows_of(result), tuple(values), np.array(lower, np.int64), np.array(upper, np.int64))


def rows_of(result: Result) -> int:
    return int(result["ends"][-1]) if result["ends"] else 0


def spill_of(work: Place, result: Result) -> Spill:
    return Spill.from_plain(work, result)
