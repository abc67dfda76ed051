"""How a failed run is entered in its run directory, by the launcher: the workers may no longer be able to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.events import Fault, MemberLost
from shoal.core.world import Member
from shoal.launch.failure import Casualty
from shoal.launch.rundir import RunDir

TERMINAL = frozenset({"completed", "stopped", "interrupted", "failed"})


class Record:
    """The run directory of a run that was launched at `launched_ns` (wall clock). The summary of an earlier run in the
    same directory is not taken for that of this one."""

    def __init__(self, run_dir: str, launched_ns: int) -> None:
        self.run_dir = RunDir(Path(run_dir))
        self._launched_ns = launched_ns

    def summary(self) -> dict[str, Any] | None:
        """The summary that this run has written, or None."""
        try:
            written_ns = self.run_dir.summary_file.stat().st_mtime_ns
        except OSError:
            return None
        return self.run_dir.summary() if written_ns >= self._launched_ns else None

    def failed(self, casualties: Sequence[Casualty], members: Mapping[int, Member]) -> str | None:
        """Enter the casualties. A summary in which the first worker has stated the end itself is left as
        it is. Returns what kept it from being written (a full disk, perhaps), or None."""
        faults = [
            Fault(one.step, str(members[one.rank]), one.account.cause, one.phase, round(one.detected_s, 4))
            for one in casualties
        ]
        try:
            for fault, one in zip(faults, casualties, strict=True):
                self.run_dir.append(fault)
                if one.account.kind != "user":
                    member = members[one.rank]
                    self.run_dir.append(
                        MemberLost(member.role, member.rank, member.host, member.pid, one.account.cause)
                    )
            self._enter_summary(faults, len(members))
        except ShoalError as error:
            return str(error)
        return None

    def _enter_summary(self, faults: Sequence[Fault], workers: int) -> None:
        summary = self.summary() or {"workers": workers}
        if summary.get("status") in TERMINAL:
            return
        entries = [
            {
                "at_step": f.at_step,
                "member": f.member,
                "cause": f.cause,
                "detected_s": f.detected_s,
                "resumed_s": None,
            }
            for f in faults
        ]
        self.run_dir.write_summary({**summary, "status": "failed", "faults": [*summary.get("faults", ()), *entries]})
