"""Files that a library writes to and does not close."""

from __future__ import annotations

from typing import Any


class Unowned:
    """A file that pyarrow writes to, and leaves open when it closes its own stream: it is its owner's."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        return len(view)

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """The file is its owner's."""
