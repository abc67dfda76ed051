"""Looking at a prepared data set before training: every shard is there, whole, and what the manifest says."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.manifest import Manifest, ManifestError, RowGroup, Shard
from shoal.data.places import AccessError, Place
from shoal.data.shards.blocks import Blocks, blocks_of
from shoal.data.shards.patience import Patience
from shoal.data.shards.persist import persist

_TAIL = 64 << 10  # most footers are shorter
_MAGIC = b"PAR1"
_AT_ONCE = 16
_AGAIN = "prepare the data set again, or bring back the file"


@dataclass(frozen=True)
class StoredBlock:
    """Where a block is: row group `number` of `place`, or those of its rows that are `within`."""

    place: Place
    shard: Shard
    number: int
    group: RowGroup
    footer: Any  # a pyarrow.parquet.FileMetaData
    within: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        return f"row group {self.number} of {self.place}"


@dataclass(frozen=True)
class DataSet:
    """A prepared data set that was looked at. `mark` differs where its samples do."""

    place: Place
    mark: str
    manifest: Manifest
    blocks: Blocks
    stored: tuple[StoredBlock, ...]
    bytes_looked_at: int  # of footers


def open_data_set(place: Place, name: str, patience: Patience) -> DataSet:
    """Read manifest and footers. Raises `AccessError`, `ManifestError` or `ConfigError` that say what is wrong and
    where, if a shard is missing, or of other length, rows or schema than the manifest says."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"reading {place} needs pyarrow: pip install 'shoal[data]'")
    manifest = persist(lambda: Manifest.read(place), patience, f"the manifest of {place}", not place.is_local)
    if manifest.rows == 0:
        raise ConfigError(f"the {name} data in {place} is empty: its manifest counts no rows")
    shards = manifest.shards
    counted = sum(shard.rows for shard in shards)
    if counted != manifest.rows or any(sum(g.rows for g in shard.row_groups) != shard.rows for shard in shards):
        raise ManifestError(f"the manifest of {place} contradicts itself: {manifest.rows} rows, {counted} in shards")
    expected = manifest.schema

    def look(shard: Shard) -> tuple[Any, int]:
        at = place / shard.file
        return persist(lambda: _footer(at, shard, expected), patience, str(at), not place.is_local)

    footers = _all(look, shards, 1 if place.is_local else _AT_ONCE)
    by_file = {shard.file: footer for shard, (footer, _) in zip(shards, footers, strict=True)}
    unpacked = sum(footer.row_group(number).total_byte_size for footer, _ in footers for number in _groups(footer))
    blocks, found = blocks_of(manifest, unpacked)
    stored = tuple(
        StoredBlock(place / shard.file, shard, number, group, by_file[shard.file]) for shard, number, group in found
    )
    mark = hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:12]
    return DataSet(place, mark, manifest, blocks, stored, sum(read for _, read in footers))


def _groups(footer: Any) -> range:
    return range(footer.num_row_groups)


def _all(look: Callable[[Shard], tuple[Any, int]], shards: Sequence[Shard], at_once: int) -> list[tuple[Any, int]]:
    if at_once == 1:
        return [look(shard) for shard in shards]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(look, shards))


def _footer(place: Place, shard: Shard, expected: Any) -> tuple[Any, int]:
    try:
        nbytes = place.nbytes()
    except AccessError as error:
        if "does not exist" not in str(error):
            raise
        raise AccessError(f"{place} is missing, though the manifest names it: {_AGAIN}") from None
    if nbytes != shard.bytes:
        raise ManifestError(f"{place} has {nbytes} bytes and should have {shard.bytes}: it is damaged; {_AGAIN}")
    tail = place.read(max(0, nbytes - _TAIL), nbytes)
    if tail[-4:] != _MAGIC:
        raise ManifestError(f"{place} is no Parquet file, or damaged: {_AGAIN}")
    length = int.from_bytes(tail[-8:-4], "little") + 8
    read = len(tail)
    if length > len(tail):
        tail = place.read(max(0, nbytes - length), nbytes)
        read += len(tail)
    metadata = _parse(place, tail[-length:])
    _compare(place, shard, metadata, expected)
    return metadata, read


def _parse(place: Place, footer: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(io.BytesIO(_MAGIC + footer))
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(f"the footer of {place} is damaged ({error}): {_AGAIN}") from None


def _compare(place: Place, shard: Shard, metadata: Any, expected: Any) -> None:
    schema = metadata.schema.to_arrow_schema()
    if not schema.equals(expected):
        odd = [f"{one.name}: {one.type}" for one in schema if one not in list(expected)]
        missing = [f"{one.name}: {one.type}" for one in expected if one not in list(schema)]
        raise ManifestError(
            f"the schema of {place} is not that of the data set: it has {', '.join(odd) or 'nothing more'}, the others "
            f"{', '.join(missing) or 'nothing more'}. {_AGAIN.capitalize()}"
        )
    rows = [metadata.row_group(number).num_rows for number in _groups(metadata)]
    if rows != [group.rows for group in shard.row_groups]:
        raise ManifestError(f"{place} has {sum(rows)} rows in {len(rows)} row groups, the manifest counts "
                            f"{shard.rows} in {len(shard.row_groups)}: {_AGAIN}")  # fmt: skip
