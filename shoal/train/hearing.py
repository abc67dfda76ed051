"""What other processes enter in a run's events while this one takes part: read as it comes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal.core.cursor import Cursor
from shoal.core.events import Evaluated, RunStarted

EVALUATOR = "evaluator"  # by whom an evaluation is, in its event
_KINDS = frozenset({Evaluated.kind, RunStarted.kind})
_MARKS = tuple(f'"{kind}"'.encode() for kind in _KINDS)


class EventTail:
    """Beginnings of runs and evaluations in an events file, which need not exist yet. `from_end`: only what comes."""

    def __init__(self, path: Path, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """What has been entered since the last call, in order. Does not wait."""
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [event for line in whole.splitlines() if (event := _parse(line)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    if not any(mark in line for mark in _MARKS):
        return None
    try:
        event = json.loads(line)
    except ValueError:  # cut off by a crash
        return None
    return event if isinstance(event, dict) and event.get("kind") in _KINDS else None


def evaluation_in(event: dict[str, Any]) -> Evaluated | None:
    """The evaluation that an event tells of, if it does."""
    if event["kind"] != Evaluated.kind:
        return None
    cursor = Cursor.from_json(event["cursor"])
    return Evaluated(cursor, dict(event["values"]), float(event["seconds"]), str(event.get("by", "workers")))
