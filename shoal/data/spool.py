"""Samples that were given one after the other, kept in a file so that each can be asked for by its number."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from array import array
from typing import Any

from shoal.core.errors import UserError
from shoal.data.sample_bytes import Form, decode, encode

_WRITE_BYTES = 1 << 20


class SpoolError(UserError):
    """There is no room for the samples."""


class Spool:
    """Append all samples, `seal` it, then read any of them, in any process that was forked since.

    The file is in the directory for temporary files (TMPDIR) and has no name: it is gone with the last process that has
    it open, however that ends. In memory are 12 bytes for each sample. `digest` tells two spools apart whose samples
    differ, or their order.
    """

    def __init__(self) -> None:
        self.directory = tempfile.gettempdir()
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)
        self._unwritten = bytearray()
        self._ends = array("q", [0])
        self._forms: dict[Form, int] = {}
        self._form_of = array("i")
        self._known: list[Form] = []
        self._hash = hashlib.sha256()

    def __len__(self) -> int:
        return len(self._form_of)

    @property
    def nbytes(self) -> int:
        return self._ends[-1]

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def append(self, sample: Any) -> None:
        """Raises `SampleError` for what cannot become bytes, `SpoolError` where the disk is full."""
        data = bytearray()
        form = encode(sample, data)
        number = self._forms.setdefault(form, len(self._forms))
        if number == len(self._known):
            self._known.append(form)
            self._hash.update(repr(form).encode())
        self._hash.update(number.to_bytes(4, "little"))
        self._hash.update(data)
        self._unwritten += data
        self._form_of.append(number)
        self._ends.append(self._ends[-1] + len(data))
        if len(self._unwritten) >= _WRITE_BYTES:
            self._write()

    def seal(self) -> None:
        """All samples have been appended. Raises `SpoolError`."""
        self._write()

    def _write(self) -> None:
        left = memoryview(self._unwritten)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._no_room(error) from error
        self._unwritten = bytearray()

    def _no_room(self, error: OSError) -> SpoolError:
        return SpoolError(
            f"cannot keep the samples in {self.directory}: {error.strerror} after {self.nbytes / 1e9:.2f} GB. Point "
            "TMPDIR to a directory with more room"
        )

    def read(self, number: int) -> Any:
        """Sample `number`, which the caller may change."""
        start, end = self._ends[number], self._ends[number + 1]
        data = bytearray(end - start)
        left = memoryview(data)
        while left:
            # at a place of its own: forked processes share the file's position
            count = os.preadv(self._file.fileno(), [left], end - len(left))
            assert count > 0, "the spool is shorter than what was written to it"
            left = left[count:]
        return decode(self._known[self._form_of[number]], data)
