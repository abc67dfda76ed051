"""What the launcher enters in a run directory: whom the run went on without, and how it failed, if it did. The workers
may no longer be able to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.events import Event, Fault, MemberLost
from shoal.core.world import Member
from shoal.launch.failure import Casualty
from shoal.launch.reserve import Reserve
from shoal.launch.rundir import FAILED, RunDir

TERMINAL = frozenset({"completed", "stopped", "interrupted", FAILED})


@dataclass
class _Entry:
    fault: Fault
    view: int
    failed_s: float
    server: int | None  # which one it was, if it was none of the workers


class Record:
    """The run directory of a run that was launched at `launched_ns` (wall clock). The summary of an earlier run in the
    same directory is not taken for that of this one. `problem`: what keeps it from being written (a full disk,
    perhaps). Some space is held back for the end: `make_room` when that has come, and nobody else writes any more."""

    def __init__(self, run_dir: str, launched_ns: int) -> None:
        self.run_dir = RunDir(Path(run_dir))
        self.problem: str | None = None
        self._launched_ns = launched_ns
        self._reserve = Reserve(self.run_dir.path)
        self._entries: list[_Entry] = []
        self._resumptions: list[tuple[int, float]] = []
        self._served_again: list[tuple[int, float]] = []

    def summary(self) -> dict[str, Any] | None:
        """The summary that this run has written, or None."""
        try:
            written_ns = self.run_dir.summary_file.stat().st_mtime_ns
        except OSError:
            return None
        return self.run_dir.summary() if written_ns >= self._launched_ns else None

    def append(self, event: Event) -> None:
        """Add an event. A directory that cannot be written does not end a run that goes on."""
        try:
            self.run_dir.append(event)
        except ShoalError as error:
            self.problem = str(error)

    def make_room(self) -> None:
        """Give back the space that was held for what is entered from now on."""
        self._reserve.give_back()

    def enter(self, one: Casualty, member: Member) -> None:
        """A worker is lost, or a server."""
        fault = Fault(
            at_step=one.step,
            member=str(member),
            cause=one.account.cause,
            phase=one.phase,
            detected_s=round(one.detected_s, 4),
            stack=one.stack,
        )
        server = member.rank if member.role == "server" else None
        self._entries.append(_Entry(fault, one.view, one.failed_s, server))
        self.append(fault)
        if one.account.kind != "user":
            self.append(MemberLost(member.role, member.rank, member.host, member.pid, one.account.cause))

    def resumed(self, view: int, at_s: float) -> None:
        """The first step of a new view was committed: whoever was lost in an earlier one has been got over. That may be
        known before the loss is entered."""
        self._resumptions.append((view, at_s))

    def served_again(self, server: int, at_s: float) -> None:
        """What a server held when it was lost is held again."""
        self._served_again.append((server, at_s))

    def faults(self) -> list[dict[str, Any]]:
        """What a summary says of the workers and servers that were lost."""
        return [asdict(replace(entry.fault, resumed_s=self._resumed_s(entry))) for entry in self._entries]

    def _resumed_s(self, entry: _Entry) -> float | None:
        if entry.server is not None:
            later = (at_s for server, at_s in self._served_again if server == entry.server and at_s >= entry.failed_s)
        elif entry.view == 0:
            return 0.0  # it took part in no view, and so held nobody up
        else:
            # no later view can begin before it is lost; but its agent may hear of a silence when that has long begun
            later = (at_s for view, at_s in self._resumptions if view > entry.view)
        at_s = next(later, None)
        return round(max(0.0, at_s - entry.failed_s), 4) if at_s is not None else None

    def conclude(self, failed: bool, workers: int) -> dict[str, Any] | None:
        """Enter all faults in the summary, once, at the end of the run, and return it. A run that has `failed` gets one
        in any case (but the result of an earlier run in the directory stays: `RunDir.write_summary`); one in which the
        first worker has stated the end itself keeps that."""
        self.make_room()
        summary = self.summary()
        faults = self.faults()
        if summary is None and not failed:
            return None
        if failed and (summary is None or summary.get("status") not in TERMINAL):
            earlier = {"faults": self._of_failures()} if summary is None else {}
            summary = {"workers": workers, **earlier, **(summary or {}), "status": FAILED}
        elif not faults:
            return summary
        assert summary is not None
        summary = {**summary, "faults": [*summary.get("faults", ()), *faults]}
        try:
            self.run_dir.write_summary(summary)
        except ShoalError as error:
            self.problem = str(error)
        return summary

    def _of_failures(self) -> list[Any]:
        """The faults of attempts in this directory that failed before this one, and after the last that did not."""
        with_result = (self.run_dir.summary() or {}).get("faults", []) if self.run_dir.has_result else []
        return self.run_dir.faults()[len(with_result) :]

    @property
    def kept(self) -> str | None:
        """The status of an earlier run whose result the directory still has, because this one has come to none."""
        if self.summary() is not None or not self.run_dir.has_result:
            return None
        return str((self.run_dir.summary() or {}).get("status"))
