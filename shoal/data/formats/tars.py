"""WebDataset: tar files in which the files of a sample follow each other and differ in what comes after the first dot.

Columns are ``__key__`` and one for each ending: `txt` and `json` are text, `cls` and `id` whole numbers, which come
last, and others bytes.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal.data.formats.base import BadRecord, Format, FormatError, OnBad, Split, formats
from shoal.data.formats.batches import ROWS
from shoal.data.formats.seeking import open_to_seek
from shoal.data.places import Entry, Place

KEY = "__key__"
_NUMBERS = ("cls", "cls2", "id", "index")
_TEXTS = ("txt", "text", "json", "transcript")
_LOOKED_AT = 32  # samples, for the schema
_BATCH_BYTES = 8 << 20


@dataclass
class _Sample:
    """`offset`: of its first header in the tar."""

    key: str
    offset: int
    files: dict[str, bytes] = field(default_factory=dict)


@formats.add("webdataset")
class WebDataset(Format):
    """`Split.start` and `stop` are bytes: those of headers, found by reading the headers only. Compressed ones are one
    split."""

    name = "webdataset"
    endings = (".tar", ".tar.gz", ".tgz")

    def splits(self, entry: Entry, block_bytes: int) -> list[Split]:
        if _is_compressed(entry.place) or entry.nbytes <= block_bytes:  # need not be looked into
            return [Split(entry.place, self.name, 0, entry.nbytes, entry.nbytes)] if entry.nbytes else []
        return [split for split, _ in self.counted(entry, block_bytes)]

    def counted(self, entry: Entry, block_bytes: int) -> list[tuple[Split, int]]:
        place, size = entry.place, entry.nbytes
        found: list[tuple[Split, int]] = []
        start, key, samples = 0, None, 0
        with _opened(place) as tar:
            for member in _files(tar, place):
                new = _parts(member.name)[0]
                if new == key:
                    continue
                if member.offset - start >= block_bytes and samples and not _is_compressed(place):
                    found.append((Split(place, self.name, start, member.offset, member.offset - start), samples))
                    start, samples = member.offset, 0
                key, samples = new, samples + 1
        return [*found, (Split(place, self.name, start, size, size - start), samples)] if samples else found

    def schema(self, entry: Entry) -> Any:
        import pyarrow as pa

        names: dict[str, Any] = {KEY: pa.string()}
        with _opened(entry.place) as tar:
            for number, sample in enumerate(_samples(tar, entry.place, 0)):
                if number == _LOOKED_AT:
                    break
                names.update({name: _type(name) for name in sample.files})
        numbers = {name: kind for name, kind in names.items() if kind == pa.int64()}  # targets come last
        return pa.schema([*((name, kind) for name, kind in names.items() if name not in numbers), *numbers.items()])

    def read(self, split: Split, schema: Any, on_bad: OnBad) -> Iterator[Any]:
        import pyarrow as pa

        rows: list[dict[str, Any]] = []
        nbytes = 0
        with _opened(split.place, split) as tar:
            for sample in _samples(tar, split.place, 0 if _is_compressed(split.place) else split.start):
                row = _row(sample, schema)
                if isinstance(row, str):
                    on_bad(BadRecord(str(split.place), sample.offset, row, sample.key))
                    continue
                rows.append(row)
                nbytes += sum(map(len, sample.files.values()))
                if len(rows) == ROWS or nbytes >= _BATCH_BYTES:
                    yield pa.RecordBatch.from_pylist(rows, schema=schema)
                    rows, nbytes = [], 0
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _type(name: str) -> Any:
    import pyarrow as pa

    last = name.rpartition(".")[2]
    return pa.int64() if last in _NUMBERS else pa.string() if last in _TEXTS else pa.binary()


def _row(sample: _Sample, schema: Any) -> dict[str, Any] | str:
    """What the schema asks for of a sample, or why it cannot be had."""
    row: dict[str, Any] = {}
    for column in schema:
        if column.name == KEY:
            row[KEY] = sample.key
        elif column.name not in sample.files:
            return f"sample {sample.key!r} has no .{column.name}"
        else:
            data = sample.files[column.name]
            try:
                row[column.name] = _value(data, str(column.type))
            except ValueError:
                return f"{sample.key}.{column.name} should be {column.type}, and holds {data[:40]!r}"
    return row


def _value(data: bytes, kind: str) -> Any:
    if kind == "int64":
        return int(data)
    return data.decode() if kind == "string" else data


def _samples(tar: Any, place: Place, base: int) -> Iterator[_Sample]:
    sample: _Sample | None = None
    for member in _files(tar, place):
        key, name = _parts(member.name)
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = _Sample(key, base + member.offset)
        try:
            content = tar.extractfile(member).read()
        except (tarfile.TarError, EOFError, OSError) as error:
            raise FormatError(f"{place} is cut off or damaged in {member.name}: {error}") from None
        if len(content) != member.size:
            raise FormatError(f"{place} is cut off: {member.name} has {len(content)} bytes of {member.size}")
        sample.files[name] = content
    if sample is not None:
        yield sample


def _files(tar: Any, place: Place) -> Iterator[Any]:
    try:
        for member in tar:
            hidden = member.name.rpartition("/")[2].startswith((".", "_"))
            if member.isfile() and not hidden and "." in member.name.rpartition("/")[2]:
                yield member
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FormatError(f"{place} is no tar file, or it is damaged or cut off: {error}") from None


def _parts(path: str) -> tuple[str, str]:
    """Key and ending: ``a/b.seg.png`` is ``("a/b", "seg.png")``."""
    folder, slash, name = path.rpartition("/")
    stem, _, ending = name.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _is_compressed(place: Place) -> bool:
    return place.name.endswith((".gz", ".tgz"))


@contextlib.contextmanager
def _opened(place: Place, split: Split | None = None) -> Iterator[Any]:
    """A tar, or the part of it that a split is."""
    with contextlib.ExitStack() as stack:
        if _is_compressed(place):
            source, mode = stack.enter_context(place.open()), "r|gz"
        elif split is None:
            source, mode = stack.enter_context(open_to_seek(place)), "r:"
        else:
            source, mode = io.BytesIO(place.read(split.start, split.stop)), "r:"
        try:
            tar = tarfile.open(fileobj=source, mode=mode)  # type: ignore[call-overload]  # one of the two  # noqa: SIM115
        except (tarfile.TarError, EOFError, OSError) as error:
            raise FormatError(f"{place} is no tar file, or it is damaged: {error}") from None
        yield stack.enter_context(tar)
