"""Raw files as sources: in memory, or by pieces that are read when they are needed."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError
from shoal.core.order import Indices, Order
from shoal.data.files.order import PieceOrder
from shoal.data.files.rows import Wanted, count_of, nbytes_of, read_splits
from shoal.data.formats import Found, Split
from shoal.data.formats.images import Images
from shoal.data.shards.collating import Collator, Part
from shoal.data.shards.columns import Values
from shoal.data.source import Batch, Source

_LOG = logging.getLogger(__name__)
_BLOCK_BYTES = 8 << 20  # of a piece, if that is a small part of the memory
_LOOKERS = 16  # files looked at together: for remote ones it is the waiting that takes the time


class TableSource(Source):
    """All records, read once and kept in memory."""

    def __init__(self, found: Sequence[Found], wanted: Wanted) -> None:
        self._made_of = tuple(found), wanted
        splits = [split for entry, format_ in found for split in format_.splits(entry, 64 << 20)]
        self._splits = splits
        self._values, rows = read_splits(splits, wanted)
        self._starts = np.cumsum([0, *rows])
        self._samples = count_of(self._values)
        self._collate = Collator(wanted.columns, self._where)

    def __len__(self) -> int:
        return self._samples

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.words for column in self._made_of[1].columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return TableSource, self._made_of

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        made = self._collate([(self._values, indices, np.arange(len(indices)))], indices)
        return made[0] if len(made) == 1 else tuple(made)

    def _where(self, sample: int) -> str:
        at = int(np.searchsorted(self._starts, sample, side="right")) - 1
        return _words(sample, sample - int(self._starts[at]), self._splits[at])


@dataclass(frozen=True)
class Piece:
    """Rows ``[start, stop)`` of a split."""

    split: Split
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


class PieceSource(Source):
    """Records that are read by pieces, of which as many are kept as fit into `memory_bytes` (but two). The order of an
    epoch goes through windows of pieces that fill half of that."""

    def __init__(self, pieces: Sequence[Piece], wanted: Wanted, memory_bytes: int) -> None:
        self._pieces, self._wanted, self._memory_bytes = tuple(pieces), wanted, memory_bytes
        self._starts = np.cumsum([0, *(piece.rows for piece in pieces)])
        self._kept: OrderedDict[Split, list[Values]] = OrderedDict()
        self._kept_bytes = 0
        self._collate = Collator(wanted.columns, self._where)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.words for column in self._wanted.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return PieceSource, (self._pieces, self._wanted, self._memory_bytes)

    def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
        nbytes = sum(piece.split.nbytes for piece in self._pieces)
        rows = [piece.rows for piece in self._pieces]
        window = len(self) * self._memory_bytes // (4 * max(1, nbytes))  # what is read grows in memory: to twice, say
        return PieceOrder(seed, rows, max(1, window), shuffle)

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        pieces = self._of(indices)
        parts: list[Part] = []
        for number in np.unique(pieces).tolist():
            slots = np.flatnonzero(pieces == number)
            rows = indices[slots] - self._starts[number] + self._pieces[number].start
            parts.append((self._read(self._pieces[number]), rows, slots))
        made = self._collate(parts, indices)
        return made[0] if len(made) == 1 else tuple(made)

    def part(self, start: int, stop: int) -> PieceSource:
        """Samples ``[start, stop)`` alone."""
        chosen = []
        for piece, begin in zip(self._pieces, self._starts.tolist(), strict=False):
            first, last = max(start - begin, 0), min(stop - begin, piece.rows)
            if first < last:
                chosen.append(replace(piece, start=piece.start + first, stop=piece.start + last))
        return PieceSource(chosen, self._wanted, self._memory_bytes)

    def joined(self, other: PieceSource) -> PieceSource:
        """The samples of this one, then those of the other."""
        return PieceSource([*self._pieces, *other._pieces], self._wanted, self._memory_bytes)

    def _of(self, indices: Indices) -> Indices:
        found: Indices = np.searchsorted(self._starts, indices, side="right") - 1
        return found

    def _read(self, piece: Piece) -> list[Values]:
        if piece.split in self._kept:
            self._kept.move_to_end(piece.split)
            return self._kept[piece.split]
        values, _ = read_splits([piece.split], self._wanted)
        if count_of(values) < piece.stop:
            raise ConfigError(
                f"{piece.split.place} has changed since it was opened: it has fewer records. Start the run again"
            )
        self._kept[piece.split] = values
        self._kept_bytes += nbytes_of(values)
        while len(self._kept) > 2 and self._kept_bytes > self._memory_bytes:
            self._kept_bytes -= nbytes_of(self._kept.popitem(last=False)[1])
        return values

    def _where(self, sample: int) -> str:
        number = int(self._of(np.asarray([sample]))[0])
        piece = self._pieces[number]
        return _words(sample, sample - int(self._starts[number]) + piece.start, piece.split)


def _words(sample: int, record: int, split: Split) -> str:
    """Where a sample is read from: record number `record` of `split`."""
    within = "" if split.format == Images.name else f"record {record} of "  # an image is a file
    return f"sample {sample} ({within}{split.words})"


def open_files(found: Sequence[Found], wanted: Wanted, memory_bytes: int) -> Source:
    """In memory where the files fit into `memory_bytes`, else by pieces. Raises `ConfigError` for large files of which
    no record can be found without reading all."""
    nbytes = sum(entry.nbytes for entry, _ in found)
    if nbytes <= memory_bytes:
        _LOG.info(
            "%s and %d more files, %.1f MB, are read into memory", found[0][0].place, len(found) - 1, nbytes / 1e6
        )
        return TableSource(found, wanted)
    with ThreadPoolExecutor(min(_LOOKERS, len(found)), thread_name_prefix="shoal-pieces") as pool:
        block_bytes = max(1, min(_BLOCK_BYTES, memory_bytes // 8))
        counted = list(pool.map(lambda one: one[1].counted(one[0], block_bytes), found))
    pieces: list[Piece] = []
    for (entry, format_), parts in zip(found, counted, strict=True):
        if parts is None:
            have = "and others have" if len(found) > 1 else "has"
            raise ConfigError(
                f"{entry.place} {have} {nbytes / 1e6:,.0f} MB, and {format_.name} files are read "
                f"into memory whole, up to {memory_bytes / 1e6:,.0f} MB. Make a data set of it with `shoal prepare`, "
                f"which is read piece by piece, or allow more with memory_mib={_mib(nbytes)}"
            )
        pieces += [Piece(split, 0, rows) for split, rows in parts if rows]
    return PieceSource(pieces, wanted, memory_bytes)


def _mib(nbytes: int) -> int:
    return (nbytes >> 20) + 1
