"""All workers and agents that have spoken, and those that are out for good. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from shoal.core.world import Member
from shoal.elastic.known import KnownAgent, KnownWorker
from shoal.elastic.status import AgentStatus, Loss, Still, WorkerNote, WorkerStatus
from shoal.elastic.targets import Host, leavers, targets

MOST_KEYS = 65536  # that a run may ever have: no one can fill the memory with them
MOST_AGENTS = 1024
_FORGET_AGENT_LEASES = 10  # an agent silent for so long is forgotten
_LOST_TOLD = 64  # how many of those lost last are told to agents


class Roster:
    """What is known of each. Knows nothing of views but the ranks that are passed in."""

    def __init__(self, lease_s: float, most_workers: int | None) -> None:
        self.workers: dict[str, KnownWorker] = {}  # alive as far as we know
        self.agents: dict[str, KnownAgent] = {}  # by arrival
        self.out: dict[str, str] = {}  # keys that can never come in again, and why
        self.evict: dict[str, str] = {}  # of these, those that their agent has to kill, and which agent that is
        self.lost: dict[str, Loss] = {}  # of these, the last that were lost
        self.wanted: int | None = None  # workers in all, once someone has said it
        self.changes = 0  # grows with every change that could matter to anyone
        self._arrivals = 0
        self._lease_s, self._most_workers = lease_s, most_workers

    def hear_worker(self, status: WorkerStatus, now_s: float) -> bool:
        """Note a worker's status and sign of life. False: it is no news, not even a sign of life."""
        known = self.workers.get(status.key)
        if known is not None and outdated(status, known.status):
            return False
        if known is None:
            if status.key in self.out or len(self.workers) + len(self.out) >= MOST_KEYS:
                return False
            self.workers[status.key] = KnownWorker(status, self._arrivals, now_s, now_s)
            self._arrivals += 1
            self.changes += 1
            return True
        known.heard_s = now_s
        if status != known.status:
            known.status, known.since_s = status, now_s
            self.changes += 1
        return True

    def hear_agent(self, status: AgentStatus, now_s: float) -> dict[str, str]:
        """Note an agent's status, in which it vouches for its workers. Returns those that have ended, and how."""
        known = self.agents.get(status.agent)
        if known is None and len(self.agents) >= MOST_AGENTS:
            return {}
        if known is None or _essence(known.status) != _essence(status):
            self.changes += 1
        if known is None:
            self.agents[status.agent] = KnownAgent(status, now_s)
        else:
            known.status, known.heard_s = status, now_s
        ended = {}
        for key, note in status.workers.items():
            worker = self.workers.get(key)
            if worker is not None and worker.status.agent != status.agent:
                continue  # not this agent's to speak for
            if note.ended:
                self.evict.pop(key, None)
                if worker is not None or len(self.out) < MOST_KEYS:
                    ended[key] = note.cause or "it ended"
            elif note.alive and worker is not None:
                worker.heard_s = now_s
        return ended

    def excuse(self, gap_s: float, now_s: float) -> None:
        """We did not run for `gap_s`, and could hear nobody: leases last so much longer."""
        for worker in self.workers.values():
            worker.heard_s = min(now_s, worker.heard_s + gap_s)
        for agent in self.agents.values():
            agent.heard_s = min(now_s, agent.heard_s + gap_s)

    def silent_workers(self, now_s: float) -> list[str]:
        """Those whose lease has run out."""
        return [key for key, one in self.workers.items() if now_s - one.heard_s > self._lease_s]

    def forget_silent_agents(self, now_s: float) -> None:
        for name, agent in list(self.agents.items()):
            if now_s - agent.heard_s > _FORGET_AGENT_LEASES * self._lease_s and not agent.status.home:
                del self.agents[name]
                self.changes += 1
                self.evict = {key: owner for key, owner in self.evict.items() if owner != name}

    def put_out(self, key: str, cause: str, lost: bool) -> None:
        """`key` can never come in again."""
        note = self.note(key)
        self.workers.pop(key, None)
        self.out[key] = cause
        self.changes += 1
        if lost:
            self.lost[key] = Loss(cause, note.step, note.phase) if note is not None else Loss(cause)
            if len(self.lost) > _LOST_TOLD:
                del self.lost[next(iter(self.lost))]

    def note(self, key: str) -> WorkerNote | None:
        """What its agent has last said of a worker that has spoken."""
        known = self.workers.get(key)
        agent = self.agents.get(known.status.agent) if known is not None else None
        return agent.status.workers.get(key) if agent is not None else None

    def unheard(self, members: tuple[Member, ...]) -> dict[str, int]:
        """Who of `members`, by key, is not heard by which other, by rank."""
        notes = {member.key: self.note(member.key) for member in members}
        return {
            key: note.unheard
            for key, note in notes.items()
            if note is not None and not note.ended and note.unheard is not None and note.unheard < len(members)
        }

    def still(self, members: tuple[Member, ...], now_s: float) -> dict[str, Still]:
        """Who of `members` does not move, by key. What was said half a lease ago may not be true any more."""
        lately = {name for name, one in self.agents.items() if now_s - one.heard_s <= self._lease_s / 2}
        notes = {one.key: self.note(one.key) for one in members if one.agent in lately}
        return {key: note.still for key, note in notes.items() if note is not None and note.still is not None}

    def at_door(self) -> list[WorkerStatus]:
        """All that wait at the door of any fit, by arrival."""
        waiting = [one for one in self.workers.values() if one.status.state == "door"]
        return [one.status for one in sorted(waiting, key=lambda one: one.order)]

    def is_home(self, key: str) -> bool:
        agent = self.agents.get(self.workers[key].status.agent)
        return agent is not None and agent.status.home

    def targets(self) -> dict[str, int | None]:
        """How many workers each agent should run."""
        hosts = [
            Host(name, one.status.home, one.status.capacity, one.status.leaving) for name, one in self.agents.items()
        ]
        return targets(hosts, self.wanted, self._most_workers)

    def leavers(self, members: tuple[Member, ...]) -> set[str]:
        """The workers that are asked to go, given the members of the view."""
        wish = {name: target for name, target in self.targets().items() if target is not None}
        if not wish:
            return set()
        rank = {member.key: member.rank for member in members}
        running: dict[str, list[str]] = {name: [] for name in wish}
        for key, one in self.workers.items():
            if one.status.agent in running and one.status.state != "gone":
                running[one.status.agent].append(key)
        return set().union(*(leavers(wish[name], keys, rank) for name, keys in running.items()))

    def absent(self, present: set[str], now_s: float) -> list[str]:
        """Names of those that may still come to the door where `present` stand, to begin a fit with them.

        Those that agents report as running and that have not spoken yet are waited for in any case. Those of which we
        do not know whether they will come - they are busy after an earlier fit, or their agent has not spoken yet - are
        given a lease from the moment when the first stood at the door."""
        doors = [self.workers[key] for key in present]
        patient = bool(doors) and now_s < min(one.since_s for one in doors) + self._lease_s
        live = {name: one for name, one in self.agents.items() if now_s - one.heard_s <= self._lease_s}
        notes = {key: (agent.status, note) for agent in live.values() for key, note in agent.status.workers.items()}
        names = [
            f"process {note.pid} on {status.host}, which has not come to fit()"
            for key, (status, note) in notes.items()
            if not (note.ended or status.leaving or key in self.workers or key in self.out)
        ]
        if patient:
            names += [
                f"process {one.status.pid} on {one.status.host}, which has finished an earlier fit()"
                for key, one in self.workers.items()
                if key not in present and one.status.state != "gone"
            ]
            names += [
                f"the agent of {one.status.host}" for one in doors if one.status.agent and one.status.key not in notes
            ]
        return names

    def to_json(self) -> dict[str, Any]:
        return {
            "workers": [one.to_json() for one in self.workers.values()],
            "agents": [one.to_json() for one in self.agents.values()],
            "out": self.out,
            "evict": self.evict,
            "lost": {key: asdict(loss) for key, loss in self.lost.items()},
            "wanted": self.wanted,
            "arrivals": self._arrivals,
        }

    def restore(self, data: Mapping[str, Any], now_s: float) -> None:
        """Become what `to_json` has written down. All leases begin anew."""
        known = [KnownWorker.from_json(one, now_s) for one in data["workers"]]
        agents = [KnownAgent.from_json(one, now_s) for one in data["agents"]]
        self.workers = {one.status.key: one for one in known}
        self.agents = {one.status.agent: one for one in agents}
        self.out, self.evict = dict(data["out"]), dict(data["evict"])
        self.lost = {key: Loss(**loss) for key, loss in data["lost"].items()}
        self.wanted, self._arrivals = data["wanted"], int(data["arrivals"])


def _essence(status: AgentStatus) -> object:
    """What of an agent's status matters to others: not that it vouches for its workers, at every beat."""
    notes = {key: (note.pid, note.ended, note.unheard) for key, note in status.workers.items()}
    return status.home, status.capacity, status.leaving, status.stopping, dict(status.condemned), notes


def outdated(status: WorkerStatus, known: WorkerStatus) -> bool:
    """Whether `status` was said before `known`, though it came after it, as may happen over two connections."""
    if (status.fit, status.view) != (known.fit, known.view):
        return status.fit < known.fit or status.view < known.view
    return known.state in ("gone", "finished") and status.state not in ("gone", known.state)
