"""A prepared data set as a source of samples: read in blocks, in the background, within a bounded memory."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.config import LoaderSettings
from shoal.core.cursor import Batches
from shoal.core.order import Indices, Order
from shoal.data.places import Place
from shoal.data.request import Batch, Loaded, Request
from shoal.data.shards.assembling import Assembler
from shoal.data.shards.cache import BlockCache
from shoal.data.shards.collating import Collator, Part
from shoal.data.shards.columns import IMAGE, Decode, choose_columns
from shoal.data.shards.decoding import BlockReader, Decoded
from shoal.data.shards.fetching import DamagedError, Fetcher
from shoal.data.shards.images import decode_image, require_decoders
from shoal.data.shards.lanes import LaneOrder
from shoal.data.shards.opening import DataSet, open_data_set
from shoal.data.shards.patience import Patience
from shoal.data.shards.plan import plan_lanes
from shoal.data.shards.selecting import chained, cut
from shoal.data.shards.streaming import stream_ahead, stream_inline
from shoal.data.shards.windows import Windows, load_window
from shoal.data.source import Source

_MIB = 1 << 20
_PARTS = 16  # of the memory: a chunk of batches, and the blocks that are needed a second time
_KEPT_WHOLE = 0.5  # of the memory: a data set that takes no more is read once, and kept
_THREADS_NEAR, _THREADS_FAR = 2, (4, 8)  # that fetch and decode windows: more hide more latency, and cost more
_UNDER_WAY = 16 * _MIB  # is enough to hide it


class ShardSource(Source):
    """All rows of the prepared data set at `place`: sample n is row n in the order of its manifest.

    A sample is a tuple with a tensor for each of `columns` (one alone: just that), all of them unless stated; a group
    of names stands for numbers side by side, as one row. Numbers become tensors, lists of equal length rows of them.
    The bytes of a column become a tensor by its function in `decode`; those of a column `image` (JPEG, PNG) become
    uint8, 3 x height x width. Nothing is drawn.

    Raises what `open_data_set` and `choose_columns` do: what is wrong with the data is said before training.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | Place,
        name: str = "train",
        *,
        columns: Sequence[str | Sequence[str]] | None = None,
        decode: Mapping[str, Decode] | None = None,
        settings: LoaderSettings | None = None,
    ) -> None:
        self._made_of = Place.of(place), name, columns, decode
        self._settings = settings or LoaderSettings()
        self._patience = Patience(stall_s=self._settings.stall_s, deadline_s=self._settings.deadline_s)
        self._set_up(open_data_set(Place.of(place), name, self._patience))

    def _set_up(self, data: DataSet) -> None:
        place, _, columns, decode = self._made_of
        settings = self._settings
        self.data, self._pid = data, os.getpid()
        self._columns = choose_columns(
            data.manifest.schema, columns, {IMAGE: decode_image, **(decode or {})}, f"the data set {place}"
        )
        if any(column.decode is decode_image for column in self._columns):
            require_decoders()
        self._memory = int(settings.memory_mib * _MIB)
        largest = max(1.0, max(data.blocks.rows) * data.blocks.row_bytes)
        self._fetcher = Fetcher(data, self._patience, self._cache())
        self._reader = BlockReader(
            data, self._fetcher, self._columns, skip=settings.corrupt == "skip",
            kept=max(2, int(self._memory / _PARTS / largest)),
            keep_all=data.blocks.nbytes <= self._memory * _KEPT_WHOLE,
        )  # fmt: skip
        self._told: dict[int, str] = {}
        self._probed: dict[int, Decoded] = {}
        self._windows: tuple[object, Windows] | None = None
        self._inline: tuple[Windows, Assembler] | None = None  # streams of single requests come one after the other

    def _cache(self) -> BlockCache | None:
        settings = self._settings
        if self.data.place.is_local or settings.cache_mib == 0:
            return None
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        folder = Path(settings.cache_dir).expanduser() if settings.cache_dir else Path(home) / "shoal" / "blocks"
        return BlockCache(folder, int(settings.cache_mib * _MIB))

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self._made_of, self._settings, self.data)

    def under(self, settings: LoaderSettings) -> Source:
        return self if settings == self._settings else _made_again(self._made_of, settings, self.data)

    def part(self, start: int, stop: int) -> ShardSource:
        """Samples ``[start, stop)``: only blocks that hold some of them are read."""
        return _made_again(self._made_of, self._settings, cut(self.data, start, stop))

    def can_join(self, other: ShardSource) -> bool:
        """Whether both give samples of the same kind, from the same kind of place."""
        mine, its = self.data, other.data
        return (
            self._made_of[2:] == other._made_of[2:]
            and mine.place.protocol == its.place.protocol
            and mine.manifest.schema.equals(its.manifest.schema)
        )

    def joined(self, other: ShardSource) -> ShardSource:
        """The samples of both, this one's first."""
        return _made_again(self._made_of, self._settings, chained(self.data, other.data))

    def __len__(self) -> int:
        return self.data.blocks.samples

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.words for column in self._columns)

    def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
        blocks = self.data.blocks
        return LaneOrder(seed, blocks, plan_lanes(blocks, batches, self._memory, shuffle), shuffle)

    @property
    def mark(self) -> str:
        return self.data.mark

    @property
    def bytes_read(self) -> int:
        return self._fetcher.bytes_read + super().bytes_read

    # ---- reading

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        blocks = self.data.blocks
        parts: list[Part] = []
        of = blocks.of(indices)
        for number in dict.fromkeys(of.tolist()):
            slots = np.flatnonzero(of == number)
            values = self._block(number)
            if values is None:
                raise DamagedError(number, self.data.stored[number].words, "its samples were asked for by number")
            parts.append((values, indices[slots] - blocks.starts[number], slots))
        made = Collator(self._columns, self._where)(parts, indices)
        return made[0] if len(made) == 1 else tuple(made)

    def _block(self, number: int) -> Decoded:
        """A block that is asked for out of order: the last two are kept."""
        if number not in self._probed:
            self._probed = dict([*self._probed.items(), (number, self._reader.read(number))][-2:])
        return self._probed[number]

    def stream(
        self, order: Order, seed: int, requests: Iterable[Request], *, epochs: int | None = None, ahead: bool = True
    ) -> Generator[Loaded, None, None]:
        assert isinstance(order, LaneOrder)
        if os.getpid() != self._pid:  # threads that were not forked may have held what they share
            self._read_elsewhere = 0
            self._set_up(self.data)
        windows, threads = self._windows_of(order), os.cpu_count() or 1
        self._probed = {}
        if not ahead:
            if self._inline is None or self._inline[0] is not windows:
                self._inline = windows, Assembler(order, windows, Collator(self._columns, self._where), epochs)
            return stream_inline(self._inline[1], requests)
        pool = ThreadPoolExecutor(threads, "shoal-images")  # has no thread until it is used

        def finish() -> None:
            windows.idle()
            pool.shutdown()

        collate = Collator(self._columns, self._where, pool, threads)
        sample_bytes = max(1.0, self.data.blocks.row_bytes * (4 if collate.decodes else 1))
        return stream_ahead(
            Assembler(order, windows, collate, epochs), requests, sample_bytes, self._memory / _PARTS, finish,
            windows.wake,
        )  # fmt: skip

    def _windows_of(self, order: LaneOrder) -> Windows:
        """The windows that are in memory: they outlive a stream, so that one that begins where another ended finds
        what was read."""
        if self._windows is None or self._windows[0] != order.key:
            kept = Windows(
                lambda window: load_window(window, order, self._reader), self._memory, self.data.blocks.row_bytes,
                self._threads(),
            )  # fmt: skip
            self._windows = order.key, kept
        return self._windows[1]

    def _threads(self) -> int:
        if self.data.place.is_local:
            return _THREADS_NEAR
        least, most = _THREADS_FAR
        return max(least, min(most, int(_UNDER_WAY / max(1.0, self.data.blocks.nbytes / len(self.data.blocks.rows)))))

    def readable(self, indices: Indices) -> Indices:
        blocks = self.data.blocks.of(indices)
        there = [number for number in np.unique(blocks).tolist() if self._is_readable(number)]
        return indices[np.isin(blocks, there)]

    def complaints(self) -> list[str]:
        new = {number: words for number, words in self._reader.damaged.items() if number not in self._told}
        self._told.update(new)
        return list(new.values())

    def _is_readable(self, number: int) -> bool:
        return number not in self._reader.damaged and self._reader.read(number) is not None

    def _where(self, sample: int) -> str:
        stored = self.data.stored[int(self.data.blocks.of(np.asarray([sample]))[0])]
        return f"sample {sample} ({stored.words})"


def _made_again(made_of: tuple[Any, ...], settings: LoaderSettings, data: DataSet) -> ShardSource:
    """Of a data set that has been looked at."""
    made = ShardSource.__new__(ShardSource)
    made._made_of, made._settings = made_of, settings
    made._patience = Patience(stall_s=settings.stall_s, deadline_s=settings.deadline_s)
    made._set_up(data)
    return made
