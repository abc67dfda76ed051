"""Finished runs, one a line, so that an interrupted benchmark goes on with the round it was in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.report import Run


class Journal:
    """Runs of one set of settings. Without a path it keeps them in memory only.

    The first line holds the settings; a file begun with others is refused: its figures are not comparable.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.runs: list[Run] = []
        self._path = path
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
            if head != settings:
                raise SystemExit(f"{path} was begun with {head}, not {settings}: give another --journal, or remove it")
            for line in lines:
                self._keep(Run(**line))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings) + "\n")

    def holds(self, peers: Iterable[str], workload: str, number: int) -> bool:
        """Whether all of `peers` succeeded in this round. One that is missing makes the round worthless: made up
        for later, it would be compared with what others did on another machine, as it were."""
        succeeded = {run.peer for run in self.runs if (run.workload, run.round, run.error) == (workload, number, None)}
        return succeeded.issuperset(peers)

    def add(self, run: Run) -> None:
        """Keep `run`, in place of an earlier one of the same round."""
        self._keep(run)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(run.to_json()) + "\n")

    def _keep(self, run: Run) -> None:
        same = (run.peer, run.workload, run.round)
        self.runs = [old for old in self.runs if (old.peer, old.workload, old.round) != same] + [run]
