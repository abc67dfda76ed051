"""What a coordinator must not forget when it dies: a file of lines, appended to before anyone is told.

A line is the whole state of the membership, or one value of the store; so the last line of the first kind and what
follows it are the present. The file outlives the process, not the machine: it is not flushed to the disk, because with
the machine the launcher dies, and with it the run. Its owner alone can read it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JOURNAL_NAME = "coordinator.jsonl"
_COMPACT_BYTES = 4 << 20


class Journal:
    """The journal at `path` of the run with this name. What an earlier coordinator of the run has written
    is read; a file of another run is replaced. Raises `OSError` where the file cannot be written."""

    def __init__(self, path: str | Path, run: str) -> None:
        self._path, self._run = Path(path), run
        self._descriptor: int | None = None
        self._size_bytes = 0
        self.state, self.values = _replay(self._path, run)

    def write(self, state: Mapping[str, Any] | None, values: Mapping[str, bytes | None]) -> None:
        """Append the state, if it is given, and the changed values, None for those deleted.

        Raises `OSError`; the next `write` then begins a new file, and must give all there is (see `whole`)."""
        lines = [] if state is None else [{"state": state}]
        text = "".join(json.dumps(line) + "\n" for line in [*lines, *map(_value_line, values.items())]).encode()
        if self._descriptor is None:
            self._begin(text)
        else:
            self._append(self._descriptor, text)

    @property
    def whole(self) -> bool:
        """Whether the next `write` must give the state and all values: a new file is due."""
        if self._size_bytes > _COMPACT_BYTES:
            self.close()
        return self._descriptor is None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _begin(self, text: bytes) -> None:
        """Replace the file in one step by a new one."""
        temporary = self._path.with_name(f".tmp-{self._path.name}")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._size_bytes = 0
        try:
            self._append(descriptor, json.dumps({"run": self._run}).encode() + b"\n" + text)
            temporary.replace(self._path)
        except OSError:
            if self._descriptor is None:
                os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _append(self, descriptor: int, text: bytes) -> None:
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            self.close()  # half a line may be there: begin anew
            raise
        self._size_bytes += len(text)


def _value_line(item: tuple[str, bytes | None]) -> dict[str, Any]:
    key, value = item
    return {"key": key, "value": None if value is None else base64.b64encode(value).decode()}


def _replay(path: Path, run: str) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
    """The last state and the values in the journal, up to the first line that is damaged."""
    state: dict[str, Any] | None = None
    values: dict[str, bytes] = {}
    try:
        lines = path.read_bytes().split(b"\n")
        if json.loads(lines[0]) != {"run": run}:
            return None, {}
        for line in lines[1:-1]:  # what follows the last line break is torn
            entry = json.loads(line)
            if "state" in entry:
                state = entry["state"]
            elif entry["value"] is None:
                values.pop(entry["key"], None)
            else:
                values[entry["key"]] = base64.b64decode(entry["value"])
    except OSError:  # not there, or not to be read: then it is begun anew
        pass
    except (ValueError, KeyError, TypeError):
        pass  # what stands before it is whole, and members say the rest again
    return state, values
