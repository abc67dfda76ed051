"""Who is in charge of one server: the decisions of the keeper, as a pure state machine.

A *post* is one server as clients see it; up to two processes stand behind it, a primary and a backup. All changes of
who is what are decided here and nowhere else, and numbered: `term` grows with every new primary, `revision` with every
change. That no acknowledged update is lost follows from four rules:

1. A primary with a backup acknowledges a change only when the backup has it.
2. A primary never goes on without its backup on its own account: it asks, and goes on when an assignment says so.
3. A backup becomes primary only by an assignment, and from the moment it hears of one it takes nothing from an earlier
   term. So what an earlier primary, frozen and woken up, still does can no longer be acknowledged.
4. Assignments are made by this one machine, one after the other. It gives the post either to the primary alone or to
   the backup, never to both.

Hence whoever holds the post has every change that was ever acknowledged. Reads follow by a lease: see `replication`.
A second loss before a new backup has caught up is not survived by copies: `lost` says so, and the fleet goes back to
its last snapshot. A primary without a backup is replaced only when its process has ended, never because it is silent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_type_hints

from shoal.store.conforming import conforms
from shoal.store.packing import PackingError

Role = Literal["primary", "backup", "spare"]


@dataclass(frozen=True)
class Assignment:
    """Who does what in a post; processes are named, an empty name means nobody.

    `recruit` is being brought up to become the backup. `certain`: the primary before this one is known to have ended,
    so that its lease need not be waited out. `generation` grows when state was lost; `restore` is then the snapshot
    that the primary begins from, empty for none. None: it has the state.
    """

    term: int = 0
    revision: int = 0
    generation: int = 0
    primary: str = ""
    backup: str = ""
    recruit: str = ""
    certain: bool = True
    restore: str | None = None

    def role(self, name: str) -> Role:
        """What the process `name` is."""
        return "primary" if name == self.primary else "backup" if name == self.backup else "spare"

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Assignment:
        """Raises `PackingError` for what is none."""
        hints = get_type_hints(cls)
        if data.keys() != hints.keys() or not all(conforms(value, hints[name]) for name, value in data.items()):
            raise PackingError(f"this is no assignment: {data!r:.200}")
        return cls(**data)


@dataclass(frozen=True)
class Report:
    """What a process says of itself: the last assignment it has heard of, and, as a primary, how its follower does.

    `caught_up` names a recruit that has everything; `lost` a follower that does not answer any more."""

    name: str
    revision: int = 0
    generation: int = 0
    role: Role = "spare"
    position: int = 0
    caught_up: str = ""
    lost: str = ""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Report:
        return cls(**data)


class Succession:
    """The post's processes and its assignment. Not a clock of its own: every call says what time it is.

    `notices` collects what happened, in words, for whoever logs it.
    """

    def __init__(self, lease_s: float, replicas: int = 1) -> None:
        self.assignment = Assignment()
        self.notices: list[str] = []
        self._lease_s, self._replicas = lease_s, replicas
        self._heard_s: dict[str, float] = {}  # living processes -> when they were last heard of
        self._reports: dict[str, Report] = {}
        self._decided_s: float | None = None

    @property
    def living(self) -> tuple[str, ...]:
        return tuple(self._heard_s)

    @property
    def lost(self) -> bool:
        """Whether nobody has the post's state any more, and somebody is there to begin anew with it."""
        now = self.assignment
        return bool(self._heard_s) and now.primary not in self._heard_s and now.backup not in self._heard_s

    @property
    def held(self) -> bool:
        """Whether the primary knows that it is."""
        report = self._reports.get(self.assignment.primary)
        return report is not None and report.role == "primary" and report.generation == self.assignment.generation

    @property
    def settled(self) -> bool:
        """Whether the primary knows of the last assignment, and there are as many copies as there should be."""
        now = self.assignment
        report = self._reports.get(now.primary)
        known = self.held and report is not None and report.revision == now.revision
        return known and (self._replicas == 1 or bool(now.backup))

    def started(self, name: str, now_s: float) -> None:
        """A new process is there, without any state."""
        self._heard_s[name] = now_s

    def ended(self, name: str) -> None:
        """A process has ended, for certain."""
        self._heard_s.pop(name, None)
        self._reports.pop(name, None)

    def heard(self, report: Report, now_s: float) -> None:
        """A process has answered."""
        if report.name in self._heard_s:
            self._heard_s[report.name] = now_s
            self._reports[report.name] = report

    def silent_s(self, name: str, now_s: float) -> float:
        """For how long nothing was heard of a living process."""
        return now_s - self._heard_s[name]

    def begin(self, generation: int, restore: str) -> None:
        """Give the post to the first living process, to begin from the snapshot `restore`. The primary keeps it where
        it lives."""
        now = self.assignment
        assert self._heard_s, "nobody is there to begin"
        primary = now.primary if now.primary in self._heard_s else next(iter(self._heard_s))
        self._assign(
            Assignment(
                now.term + 1, generation=generation, primary=primary, certain=now.primary in ("", primary) or self.lost,
                restore=restore,
            )
        )  # fmt: skip

    def decide(self, now_s: float) -> None:
        """Look at who is there, and change the assignment by one step where that is called for."""
        self._forgive_own_pause(now_s)
        now = self.assignment
        if now.primary in self._heard_s and not self._silent(now.primary, now_s):
            self._tend(now_s)
        elif now.backup in self._heard_s and not self._silent(now.backup, now_s):
            certain = now.primary not in self._heard_s
            cause = "has ended" if certain else f"was silent for {self.silent_s(now.primary, now_s):.1f} s"
            self.notices.append(f"{now.primary} {cause}: {now.backup} takes over")
            self._assign(
                Assignment(now.term + 1, generation=now.generation, primary=now.backup, certain=certain, restore=None)
            )

    def _tend(self, now_s: float) -> None:
        """The primary is there: see to its backup."""
        now = self.assignment
        report = self._reports.get(now.primary)
        if report is None or report.revision != now.revision:
            return  # it has not heard of the last change yet
        if now.backup:
            if report.lost == now.backup or self._gone(now.backup, now_s):
                self.notices.append(f"{now.backup} is gone: {now.primary} goes on without a backup")
                self._assign(replace(now, backup="", restore=None))
        elif now.recruit:
            if report.lost == now.recruit or self._gone(now.recruit, now_s):
                self._assign(replace(now, recruit="", restore=None))
            elif report.caught_up == now.recruit:
                self.notices.append(f"{now.recruit} has caught up with {now.primary} and is its backup")
                self._assign(replace(now, backup=now.recruit, recruit="", restore=None))
        elif self._replicas > 1:
            for name in self._heard_s:
                other = self._reports.get(name)
                ready = other is not None and other.role == "spare" and other.revision == now.revision
                if name != now.primary and ready and not self._silent(name, now_s):
                    self._assign(replace(now, recruit=name, restore=None))
                    return

    def _assign(self, assignment: Assignment) -> None:
        self.assignment = replace(assignment, revision=self.assignment.revision + 1)

    def _gone(self, name: str, now_s: float) -> bool:
        return name not in self._heard_s or self._silent(name, now_s)

    def _silent(self, name: str, now_s: float) -> bool:
        return self.silent_s(name, now_s) > self._lease_s

    def _forgive_own_pause(self, now_s: float) -> None:
        """Time in which the keeper itself did not run is nobody's silence."""
        before, self._decided_s = self._decided_s, now_s
        if before is not None and now_s - before > self._lease_s / 2:
            for name in self._heard_s:
                self._heard_s[name] += now_s - before
