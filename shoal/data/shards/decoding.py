"""Blocks as columns in memory. Who needs one at the same time as another, or again, gets the same."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.shards.columns import Column, Values, rows_of, values_of
from shoal.data.shards.fetching import DamagedError, Fetcher
from shoal.data.shards.opening import DataSet, StoredBlock

Decoded = list[Values] | None  # None: damaged, and to be left out


class BlockReader:
    """Reads blocks, from any thread. `skip`: those that are damaged are left out instead of raised. At most `kept`
    blocks that are needed twice stay in memory until then; with `keep_all` every block stays for good."""

    def __init__(
        self, data: DataSet, fetcher: Fetcher, columns: Sequence[Column], *, skip: bool, kept: int, keep_all: bool
    ) -> None:
        self._data, self._fetcher, self._columns = data, fetcher, columns
        self._skip, self._most, self._keep_all = skip, kept, keep_all
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Future[Decoded]] = OrderedDict()
        self.damaged: dict[int, str] = {}

    def read(self, number: int, twice: bool = False) -> Decoded:
        """The columns of a block; `twice`: it will be needed once more. Raises `DamagedError` or `ReadError`."""
        with self._lock:
            found = self._kept.get(number)
            future: Future[Decoded] = Future() if found is None else found
            if found is None and (twice or self._keep_all):
                self._kept[number] = future
                if not self._keep_all and len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            elif found is not None and not self._keep_all:
                del self._kept[number]
        if found is None:
            try:
                future.set_result(self._read(number))
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    self._kept.pop(number, None)
        return future.result()

    def _read(self, number: int) -> Decoded:
        if number in self.damaged:
            return None
        try:
            return _decode(self._data.stored[number], self._fetcher.block(number), self._columns, number)
        except DamagedError as error:
            if not self._skip:
                raise
            rows = self._data.blocks.rows[number]
            self.damaged[number] = (
                f"{self._data.stored[number].words} is damaged, {rows} samples are left out: {error.why}"
            )
            return None


def _decode(stored: StoredBlock, data: bytes, columns: Sequence[Column], number: int) -> list[Values]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for column in columns for name in column.names))
    try:
        part = _Part(data, stored.group.start, stored.shard.bytes)
        file = pq.ParquetFile(part, metadata=stored.footer, pre_buffer=False)  # it is here: in this thread
        table = file.read_row_group(stored.number, columns=names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(number, stored.words, f"it cannot be decoded ({error})") from None
    try:
        values = [values_of(table, column) for column in columns]
    except ValueError as error:
        raise ConfigError(f"{stored.words} cannot become tensors: {error}") from None
    return values if stored.within is None else [rows_of(one, *stored.within) for one in values]


class _Part(io.RawIOBase):
    """A file of which only the bytes of one row group are there, which is all that is asked for."""

    def __init__(self, data: bytes, start: int, size: int) -> None:
        self._data, self._start, self._size, self._at = memoryview(data), start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> Any:
        first = self._at - self._start
        if first < 0:
            raise OSError(f"byte {self._at} is not of this row group")
        found = self._data[first:] if size < 0 else self._data[first : first + size]
        self._at += len(found)
        return found
