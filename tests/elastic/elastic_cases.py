"""Members for tests of the membership, without processes or sockets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from shoal.core.phases import UNKNOWN
from shoal.core.world import View
from shoal.elastic.membership import Membership
from shoal.elastic.status import AgentStatus, Still, WorkerNote, WorkerStatus, WorkerWord
from shoal.elastic.terms import Terms

TERMS = Terms(lease_s=2.0)


def status(key: str, state: str = "door", view: int = 0, fit: int = 0, agent: str = "", pid: int = 1) -> WorkerStatus:
    return WorkerStatus(key, agent, f"host-{agent}", pid, 0, "", fit, view, state)  # type: ignore[arg-type]


def agent(
    name: str, *running: str, home: bool = False, capacity: int = 4, ended: dict[str, str] | None = None,
    alive: bool = False, leaving: bool = False, seen: tuple[int, str] = (0, UNKNOWN),
) -> AgentStatus:  # fmt: skip
    at = {"step": seen[0], "phase": seen[1]}
    notes = {key: WorkerNote(1, alive=alive, **at) for key in running}
    notes |= {key: WorkerNote(1, ended=True, cause=cause, **at) for key, cause in (ended or {}).items()}
    return AgentStatus(name, f"host-{name}", home, capacity, notes, leaving)


def unmoved(one: AgentStatus, seconds: float = 4.0) -> AgentStatus:
    """The same, but none of its workers moves."""
    notes = {
        key: replace(note, still=Still(seconds, False, note.step, note.phase)) for key, note in one.workers.items()
    }
    return replace(one, workers=notes)


@dataclass
class Room:
    """A membership with a clock, and workers that do as they are told."""

    terms: Terms = TERMS
    now_s: float = 100.0
    membership: Membership = field(init=False)
    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    agents: dict[str, AgentStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.membership = Membership(self.terms)

    def say(self, *statuses: WorkerStatus) -> None:
        for one in statuses:
            self.workers[one.key] = one
            self.membership.on_worker(one, self.now_s)

    def tell(self, one: AgentStatus) -> None:
        self.agents[one.agent] = one
        self.membership.on_agent(one, self.now_s)

    def word(self, key: str) -> WorkerWord:
        return self.membership.word_for_worker(key)

    def become(self, state: str, *keys: str) -> None:
        """These workers state a new state, in the view that their word gives them."""
        for key in keys:
            view = self.word(key).view
            number = view.number if view is not None else self.workers[key].view
            self.say(replace(self.workers[key], state=state, view=number))  # type: ignore[arg-type]

    def form(self, *keys: str) -> View:
        """A first view with these workers in it, all of which have entered it."""
        self.say(*(status(key) for key in keys))
        for _ in keys:  # one is let in first, the others when it has left
            held = self.members()
            if held != keys:
                self.become("in", *held)
                self.become("left", *held)
        assert self.members() == keys
        self.become("in", *keys)
        return self.membership.view

    def wait(self, seconds: float, *beating: str) -> None:
        """Time passes, during which these workers and agents are heard."""
        steps = max(1, round(seconds / (self.terms.lease_s / 6)))
        for _ in range(steps):
            self.now_s += seconds / steps
            for key in beating:
                if key in self.agents:
                    self.membership.on_agent(self.agents[key], self.now_s)
                else:
                    self.membership.on_worker(self.workers[key], self.now_s)
            self.membership.tick(self.now_s)

    def restart(self) -> None:
        """The coordinator dies, and another one reads its journal."""
        saved = json.loads(json.dumps(self.membership.to_json()))
        self.membership = Membership.from_json(saved, self.terms, self.now_s)

    def members(self) -> tuple[str, ...]:
        return tuple(member.key for member in self.membership.view.members)

    @property
    def number(self) -> int:
        return self.membership.view.number
