"""What a prepared data set says of itself: Parquet shards, and one manifest beside them that any tool can read.

A folder is a data set when it has a manifest, which is written last. Shards are ordinary Parquet files; the manifest
adds what a reader wants to know before it opens them: rows, bytes, checksums of files and row groups, ranges of keys.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

import pydantic

from shoal.core.errors import UserError
from shoal.core.places import AccessError, Place

NAME = "_manifest.json"  # tools that read all of a folder as Parquet pass over names that begin so


class ManifestError(UserError):
    """A manifest is missing, damaged, or does not fit its shards."""


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class RowGroup(_Frozen):
    """One row group: its bytes ``[start, stop)`` of the file, and their CRC-32."""

    rows: int
    start: int
    stop: int
    crc32: int


class Shard(_Frozen):
    """One Parquet file. `keys`: the smallest and the largest key in it, where it was partitioned by one."""

    file: str
    rows: int
    bytes: int
    sha256: str
    row_groups: tuple[RowGroup, ...]
    keys: tuple[Any, Any] | None = None


class Field(_Frozen):
    """A column, for people; `Manifest.schema` is what readers use."""

    name: str
    type: str


class Statistics(_Frozen):
    """Of one column. Numbers are None for what is not a number."""

    nulls: int = 0
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None


class Manifest(_Frozen):
    """Everything about a prepared data set. `partition` is the plan: how rows were divided, skew and heavy keys
    included; `job` and `source` say what was done to what."""

    format: Literal["shoal-shards"] = "shoal-shards"
    version: Literal[1] = 1
    rows: int
    bytes: int
    fields: tuple[Field, ...]
    arrow_schema: str
    shards: tuple[Shard, ...]
    partition: dict[str, Any] = {}
    statistics: dict[str, Statistics] = {}
    source: dict[str, Any] = {}
    job: dict[str, Any] = {}
    rejected: int = 0

    @property
    def schema(self) -> Any:
        """As a `pyarrow.Schema`."""
        import pyarrow as pa

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow_schema)))

    @property
    def skew(self) -> float:
        """Rows of the largest shard over the mean."""
        return (
            max((shard.rows for shard in self.shards), default=0) * len(self.shards) / self.rows if self.rows else 1.0
        )

    @staticmethod
    def pack_schema(schema: Any) -> tuple[str, tuple[Field, ...]]:
        """The two fields that tell of a `pyarrow.Schema`."""
        packed = base64.b64encode(schema.serialize().to_pybytes()).decode()
        return packed, tuple(Field(name=one.name, type=str(one.type)) for one in schema)

    @classmethod
    def read(cls, folder: Place) -> Manifest:
        """Of the data set in `folder`. Raises `ManifestError`."""
        place = folder / NAME
        try:
            text = place.read()
        except AccessError:
            if not folder.exists():
                raise AccessError(f"{folder} does not exist: check the path") from None
            raise ManifestError(
                f"{folder} is no prepared data set: it has no {NAME}. Make one with `shoal prepare`, or run the same "
                "`shoal prepare` again if it was broken off"
            ) from None
        try:
            return cls.model_validate_json(text)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ManifestError(f"{place} is damaged or of another version: {where}: {first['msg']}") from None

    def write(self, folder: Place) -> None:
        """Beside the shards, which must all be there: from now on `folder` is a data set."""
        (folder / NAME).write(self.model_dump_json(indent=1).encode())
