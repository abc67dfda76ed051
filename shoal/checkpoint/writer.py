"""Saving in the background: the step's path pays for a copy in memory, a thread does the rest."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.checkpoint.catalog import Catalog, step_of
from shoal.checkpoint.durable import remove_directories
from shoal.checkpoint.format import write_snapshot
from shoal.checkpoint.manifest import encode_plain
from shoal.checkpoint.retention import Mode, Record, to_remove
from shoal.checkpoint.snapshot import Snapshot
from shoal.core.cursor import Cursor
from shoal.core.errors import CheckpointError
from shoal.core.state import ShardedState

_NICENESS = 10  # of the thread: on a busy machine training goes first


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete on disk. `seconds` counts from the call of `save`."""

    cursor: Cursor
    path: Path
    size_bytes: int
    seconds: float
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class _Job:
    name: str
    cursor: Cursor
    meta: str
    begun: float


class Writer:
    """Writes the checkpoints of a run to `directory`, one at a time, and removes those that need not be kept.

    All methods are for one thread. What goes wrong in the background is raised, once, by the next `poll` or
    `save`: OSError for a disk that cannot be written, CheckpointError for state that cannot be saved. The
    writer can be used afterwards. A process that ends without `close` loses at most what was being written.
    `after` is called in the background with each checkpoint that is complete.
    """

    def __init__(
        self,
        directory: Path,
        keep_last: int = 2,
        keep_best: int = 1,
        monitor: str = "test_loss",
        mode: Mode = "min",
        patience_s: float = 300.0,
        after: Callable[[Path], None] = lambda path: None,
    ) -> None:
        assert keep_last >= 1, "the newest checkpoint is what a run resumes from"
        self._directory, self._patience_s, self._after = directory, patience_s, after
        self._obsolete: Callable[[Sequence[Record]], list[str]] = lambda records: to_remove(
            records, keep_last, keep_best, monitor, mode
        )
        self._snapshot: Snapshot | None = None  # the caller's while no job is there, the thread's otherwise
        self._metas: dict[str, Mapping[str, Any]] = {}  # of all that is there: manifests are read once
        self._condition = threading.Condition()
        self._job: _Job | None = None
        self._saved: list[Saved] = []
        self._failure: Exception | None = None
        self._closed = False
        self._waited_s = 0.0
        self._thread = threading.Thread(target=self._run, name="shoal-checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def waited_s(self) -> float:
        """Seconds that `save` has waited, in all, because the checkpoint before was not yet written."""
        return self._waited_s

    def save(self, name: str, shards: Sequence[ShardedState], cursor: Cursor, meta: Mapping[str, Any]) -> None:
        """Copy `shards` and return; they may change at once. The checkpoint appears when it is whole.

        If the one before is still being written, waits for it: raises CheckpointError after `patience_s`.
        """
        begun = time.perf_counter()
        assert step_of(name) == cursor.step, f"{name} is no name for a checkpoint at {cursor}"
        assert not self._closed, "the writer is closed"
        if self._job is not None:
            self.flush(self._patience_s)
            self._waited_s += time.perf_counter() - begun
        self._raise_failure()
        written_meta = encode_plain(meta, "meta")
        if self._snapshot is not None and self._snapshot.fits(shards):
            self._snapshot.fill(shards)
        else:
            self._snapshot = None  # the old copy's memory first
            self._snapshot = Snapshot(shards)
        with self._condition:
            self._job = _Job(name, cursor, written_meta, begun)
            self._condition.notify_all()

    def poll(self) -> list[Saved]:
        """What has been completed since the last call.

        Raises what the background raised; what was completed is then returned by the next call.
        """
        self._raise_failure()
        with self._condition:
            saved, self._saved = self._saved, []
        return saved

    def flush(self, deadline_s: float) -> None:
        """Wait until nothing is left to write. Raises CheckpointError after `deadline_s`."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._job is None, deadline_s):
                assert self._job is not None
                raise CheckpointError(
                    f"waited {deadline_s:.0f} s for {self._directory / self._job.name} to be written: the "
                    "disk does not answer. Mend that, then run the same command again, or choose another "
                    "--run-dir"
                )

    def close(self, deadline_s: float = 60.0) -> None:
        """Write what is left and end the thread. `poll` may be called afterwards for what came last."""
        try:
            self.flush(deadline_s)
        finally:
            with self._condition:
                self._closed = True
                self._condition.notify_all()
        self._thread.join(deadline_s)

    def _raise_failure(self) -> None:
        with self._condition:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # a matter of courtesy, and of Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._condition:
                # no deadline: it waits for its own process, as a daemon that ends with it
                self._condition.wait_for(lambda: self._job is not None or self._closed)
                job = self._job
            if job is None:
                return
            failure: Exception | None = None
            try:
                self._carry_out(job)
            except Exception as error:  # whatever it is, the training thread is told
                failure = error
            with self._condition:
                self._failure, self._job = failure or self._failure, None
                self._condition.notify_all()

    def _carry_out(self, job: _Job) -> None:
        assert self._snapshot is not None
        manifest = write_snapshot(self._directory, job.name, self._snapshot, job.cursor, job.meta)
        seconds = time.perf_counter() - job.begun
        saved = Saved(job.cursor, self._directory / job.name, manifest.size_bytes, seconds, manifest.meta)
        with self._condition:
            self._saved.append(saved)
        self._metas[job.name] = manifest.meta
        self._after(saved.path)
        self._remove_obsolete(job.cursor.step)

    def _remove_obsolete(self, step: int) -> None:
        records = Catalog(self._directory).records(self._metas)
        self._metas = {record.name: record.meta for record in records}
        # What is beyond `step` was passed over as damaged on resuming: it must not push out what is whole.
        names = self._obsolete([record for record in records if record.step <= step])
        remove_directories(self._directory / name for name in names)
