"""What a run is doing just now, as far as its events tell: who takes part, and at which step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Member:
    """A worker of the current view."""

    pid: int
    rank: int
    host: str = ""

    @property
    def name(self) -> str:
        return f"worker {self.rank}" + (f" on {self.host}" if self.host else "")


class Scene:
    """Follows a run by its events. Knows only what it was told with `learn`; pure."""

    def __init__(self) -> None:
        self.step = 0
        self.view = 0
        self.members: tuple[Member, ...] = ()
        self.ended = False
        self.workers = 0  # as many as there were at most
        self.servers: dict[int, tuple[int, ...]] = {}  # the processes of each, by age: the first one holds it
        self.whole: set[int] = set()  # servers with as many processes that have their state as there should be
        self._hosts: dict[int, str] = {}

    def learn(self, events: Iterable[Event]) -> None:
        for event in events:
            match event.get("kind"):
                case "member_joined" if event.get("role") == "worker":
                    self._joined(event)
                case "member_joined" if event.get("role") == "server":
                    at = int(event["rank"])
                    self.servers[at] = (*self.servers.get(at, ()), int(event["pid"]))
                case "member_lost" if event.get("role") == "server":
                    at = int(event["rank"])
                    self.servers[at] = tuple(pid for pid in self.servers.get(at, ()) if pid != event["pid"])
                    self.whole.discard(at)
                case "server":
                    (self.whole.add if event["whole"] else self.whole.discard)(int(event["rank"]))
                case "member_lost":
                    self.members = tuple(one for one in self.members if one.pid != event["pid"])
                case "view":
                    self._view(event)
                case "step":
                    self.step = max(self.step, int(event["cursor"]["step"]))
                case "run_ended":
                    self.ended = True
                case _:
                    pass
        self.workers = max(self.workers, len(self.members))

    def _joined(self, event: Event) -> None:
        pid, rank, host = int(event["pid"]), int(event["rank"]), str(event.get("host", ""))
        self._hosts[pid] = host
        if self.view == 0:  # until the first view is told, whoever joined takes part
            self.members = (*(one for one in self.members if one.rank != rank), Member(pid, rank, host))

    def _view(self, event: Event) -> None:
        self.view = int(event["number"])
        pids = event.get("pids")
        if pids:
            self.members = tuple(Member(int(p), rank, self._hosts.get(int(p), "")) for rank, p in enumerate(pids))


class Tail:
    """Reads a growing file of JSON lines: each `read` gives the new whole lines. The file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]
