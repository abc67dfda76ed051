"""What a worker of a case does to itself and to the others of its run, at the moments that the history says.

Every fault comes once in a run, whoever does that step again: the first who comes makes a file, in which it says whom
it is about to hit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from shoal.launch.session import current
from shoal.testing.soak.history import Fault

MARKS, PIDS = "marks", "pids"
_WAIT_S = 30.0
_STOPPED_S = 1.0  # how long a server is stopped that has no copy
_AWAY_S = 20.0  # and one that has: by then another has taken its place, if there was one


class Hurting:
    """In a worker of command number `leg`. `place` is the directory of the case, `copies` how many processes hold a
    server."""

    def __init__(self, place: Path, faults: Sequence[Fault], leg: int, copies: int) -> None:
        self._place, self._leg, self._copies = place, leg, copies
        self._left = list(enumerate(faults))
        self._worker = current().role == "worker" and current().launched
        if self._worker:
            (place / PIDS / str(os.getpid())).touch()

    def at(self, moment: str) -> None:
        """Do what is due. Called at every such moment."""
        if not self._left or not self._worker:
            return
        session = current()
        step = session.control.reading(session.world.seat).step
        for number, fault in list(self._left):
            aims = fault.kind in ("kill", "freeze", "preempt", "loader")  # at one worker, by itself
            # what the first worker alone is told of, only it can do something at
            mine = not aims or moment in ("step", "save") or session.rank == fault.target % session.size
            if fault.moment == moment and step >= fault.at and mine:
                self._left.remove((number, fault))
                victims = self._victims(fault)
                if victims and self._once(number, fault, step, victims):
                    self._strike(number, fault, victims)

    def _once(self, number: int, fault: Fault, step: int, victims: list[int]) -> bool:
        path = self._place / MARKS / str(number)
        who = {"leg": self._leg, "rank": current().rank}
        mark = {"kind": fault.kind, "step": step, **who, "pids": victims, "time": time.time()}
        hidden = path.with_name(f".{number}-{os.getpid()}")
        hidden.write_text(json.dumps(mark))
        try:
            os.link(hidden, path)
        except FileExistsError:
            return False
        finally:
            hidden.unlink()
        return True

    def _victims(self, fault: Fault) -> list[int]:
        """Whom it will hit, the one who does it last; empty where there is nobody to be hit."""
        me, reaper = os.getpid(), os.getppid()
        launcher = psutil.Process(reaper).ppid()
        victims = [me]
        match fault.kind:
            case "all":
                victims = [*self._other_workers(), me]
            case "server" | "freeze-server":
                servers = self._servers()
                victims = servers[fault.target % len(servers)][:1] if servers else []
            case "coordinator":
                victims = self._coordinator()
            case "loader":
                victims = [child.pid for child in psutil.Process(me).children()[:1]]
            case "zygote":
                victims = [one.pid for one in psutil.Process(reaper).children() if _is_zygote(one)]
            case "launcher" | "interrupt":
                victims = [launcher]
            case "everything":
                servers_too = [pid for pids in self._servers() for pid in pids]
                victims = [launcher, reaper, *self._coordinator(), *servers_too, *self._other_workers(), me]
        return victims

    def _strike(self, number: int, fault: Fault, victims: list[int]) -> None:
        match fault.kind:
            case "scale":
                done = self._place / MARKS / f"{number}.done"
                (self._place / MARKS / f"{number}.wanted").write_text(str(fault.target))
                _until(done.exists)
            case "interrupt":
                os.kill(victims[0], signal.SIGINT)
                _until(lambda: current().control.stop_requested)
            case "preempt":
                os.kill(victims[0], signal.SIGTERM)
            case "freeze":
                os.kill(victims[0], signal.SIGSTOP)
            case "freeze-server":
                _send(victims[0], signal.SIGSTOP)
                # where there should be a copy that goes on, it may be the one that is not there yet
                alone = self._copies == 1
                wake = threading.Timer(_STOPPED_S if alone else _AWAY_S, _send, (victims[0], signal.SIGCONT))
                wake.daemon = not alone
                wake.start()
            case _:
                for pid in victims:
                    _send(pid, signal.SIGKILL)
                if os.getpid() in victims:
                    time.sleep(_WAIT_S)  # the signal is on its way

    # ---- who there is

    def _other_workers(self) -> list[int]:
        """Those of this launcher that live: what an earlier command has left is not ours."""
        found = [int(entry.name) for entry in (self._place / PIDS).iterdir()]
        return sorted(pid for pid in found if pid != os.getpid() and _parent(pid) == os.getppid())

    def _servers(self) -> list[list[int]]:
        """The living processes of each server, by age."""
        servers: dict[int, list[int]] = {}
        for event in _events(self._place):
            joined = event["kind"] == "member_joined" and event.get("role") == "server"
            if joined and _parent(int(event["pid"])) == os.getppid():
                servers.setdefault(int(event["rank"]), []).append(int(event["pid"]))
        return [servers[rank] for rank in sorted(servers)]

    def _coordinator(self) -> list[int]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return [int(json.loads((self._place / "run" / "coordinator.json").read_text())["pid"])]
        return []


def _events(place: Path) -> list[dict[str, Any]]:
    try:
        text = (place / "run" / "events.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def _parent(pid: int) -> int | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.ppid()
    except psutil.Error:
        return None


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _until(condition: Any) -> None:
    """Wait for it, but not for ever: what comes of that is judged elsewhere."""
    end = time.monotonic() + _WAIT_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)


def _is_zygote(process: psutil.Process) -> bool:
    """It has the name and leads a session: a new child has the name, too, for a moment."""
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        return process.name() == "shoal-zygote" and os.getsid(process.pid) == process.pid
    return False
