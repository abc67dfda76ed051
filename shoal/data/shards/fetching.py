"""Blocks as they are stored: fetched, checked, counted, and kept on the local disk where they come from afar."""

from __future__ import annotations

import hashlib
import threading
import zlib

from shoal.core.errors import UserError
from shoal.data.shards.cache import BlockCache
from shoal.data.shards.opening import DataSet
from shoal.data.shards.patience import Patience
from shoal.data.shards.persist import persist

_READINGS = 2  # of a block whose checksum is wrong: what was damaged on its way is whole the second time


class DamagedError(UserError):
    """A block is not what the manifest says, however it is read. Names file and row group."""

    def __init__(self, number: int, words: str, why: str) -> None:
        super().__init__(
            f"{words} is damaged: {why}. Bring back the file, prepare the data set again, or go on without these rows: "
            "--set loader.corrupt=skip"
        )
        self.number, self.why = number, why


class Fetcher:
    """Fetches the bytes of blocks. Used from any thread. `bytes_read` counts what came from the place of the data, not
    from the cache."""

    def __init__(self, data: DataSet, patience: Patience, cache: BlockCache | None) -> None:
        self._data, self._patience, self._cache = data, patience, cache
        self._lock = threading.Lock()
        self.bytes_read = 0

    def block(self, number: int) -> bytes:
        """The bytes of a block. Raises `DamagedError`, or `ReadError` where it cannot be had."""
        stored = self._data.stored[number]
        group = stored.group
        key = hashlib.sha256(f"{stored.shard.sha256}:{group.start}:{group.stop}".encode()).hexdigest()[:40]
        if self._cache is not None:
            kept = self._cache.get(key)
            if kept is not None:
                if len(kept) == group.stop - group.start and zlib.crc32(kept) == group.crc32:
                    return kept
                self._cache.forget(key)
        for _ in range(_READINGS):
            data = persist(lambda: self._read(number), self._patience, stored.words, not stored.place.is_local)
            if zlib.crc32(data) == group.crc32:
                if self._cache is not None:
                    self._cache.put(key, data)
                return data
        raise DamagedError(number, stored.words, "its checksum is not that of the manifest")

    def _read(self, number: int) -> bytes:
        stored = self._data.stored[number]
        wanted = stored.group.stop - stored.group.start
        data = stored.place.read(stored.group.start, stored.group.stop)
        self.count(len(data))
        if len(data) != wanted:
            raise OSError(f"{len(data)} bytes came, {wanted} were asked for")
        return data

    def count(self, nbytes: int) -> None:
        """Take note of bytes that were fetched."""
        with self._lock:
            self.bytes_read += nbytes
