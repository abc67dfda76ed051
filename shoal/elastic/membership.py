"""The membership of a run: who is in which view, and what each member is told. Pure: time is passed in.

View n + 1 is formed when every member of view n is lost, has left the run or finished the fit, or has left the view and
waits. So no two views take steps at the same time, and every survivor is in the next view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.core.world import Member, View
from shoal.elastic.known import Notice
from shoal.elastic.ordering import choose
from shoal.elastic.roster import Roster
from shoal.elastic.status import AgentStatus, AgentWord, WorkerStatus, WorkerWord
from shoal.elastic.terms import Terms

_NAMES_TOLD = 16
_IN_A_VIEW = ("in", "left", "broken", "going")


class Membership:
    """The state machine. `notices` is for the log: whoever reads it empties it."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.notices: list[Notice] = []
        self.view = View(0, ())
        self.fit = 0  # of the view
        self.broken = self.change = self.over = 0  # as in `WorkerWord`
        self.awaited: tuple[str, ...] = ()
        self._roster = Roster(terms.lease_s, terms.max_workers)
        self._ticked_s: float | None = None
        self._learns = True  # no view formed in this life: members may know of a newer one than we do
        self._learns_until_s = 0.0

    # what members say

    def on_worker(self, status: WorkerStatus, now_s: float) -> None:
        """A worker states its status. One of an older view than it had before, or of one that never was, is no news."""
        if status.view > self.view.number and not self._learns:
            return
        if self._roster.hear_worker(status, now_s):
            if self._learns and status.state in _IN_A_VIEW:
                self._learn(status, now_s)
            # who is at a fit has passed those before it; who has finished one says so for all its members
            self.over = max(self.over, status.fit + (status.state == "finished"))
            self._settle(now_s)

    def on_agent(self, status: AgentStatus, now_s: float) -> None:
        """An agent states its status: it vouches for its workers, or says how they ended."""
        for key, cause in self._roster.hear_agent(status, now_s).items():
            self._lose(key, cause)
        for key, cause in status.condemned.items() if status.home else ():
            member = self.view.member(key)
            if member is not None and self._stays(member):
                self._evict(key, cause)
        self._settle(now_s)

    def on_scale(self, workers: int, now_s: float) -> None:
        """The run should have so many workers in all."""
        self._roster.wanted = workers
        self._roster.changes += 1
        self._settle(now_s)

    def tick(self, now_s: float) -> None:
        """Time goes by. To be called several times a lease: a long gap means that we did not run, and no lease may run
        out by that."""
        gap_s = 0.0 if self._ticked_s is None else now_s - self._ticked_s
        self._ticked_s = now_s
        if gap_s > self.terms.lease_s / 2:
            self._roster.excuse(gap_s, now_s)
        for key in self._roster.silent_workers(now_s):
            self._evict(key, f"gave no sign of life for {self.terms.lease_s:g} s")
        self._roster.forget_silent_agents(now_s)
        self._settle(now_s)

    # what members are told

    @property
    def revision(self) -> tuple[int, ...]:
        """Differs from what it was whenever something has changed that must be told or written down."""
        return self._roster.changes, self.view.number, self.broken, self.change, self.over

    def word_for_worker(self, key: str) -> WorkerWord:
        view = self.view if self.view.member(key) is not None else None
        out = self._roster.out.get(key, "")
        leave = not out and key in self._roster.leavers(self.view.members)
        running = any(self._stays(member) for member in self.view.members)
        return WorkerWord(view, self.broken, self.change, self.over, leave, out, self.awaited, running)

    def word_for_agent(self, agent: str) -> AgentWord:
        roster = self._roster
        evict = {key: roster.out[key] for key, owner in roster.evict.items() if owner == agent}
        over = any(one.status.home and one.status.leaving for one in roster.agents.values())
        view = self.view if self.view.number else None
        members, target = self.view.members, roster.targets().get(agent)
        stopping = any(one.status.home and one.status.stopping for one in roster.agents.values())
        still = roster.still(members, self._ticked_s) if stopping and self._ticked_s is not None else {}
        return AgentWord(evict, target, view, over, dict(roster.lost), roster.unheard(members), stopping, still)

    # how views follow each other

    def _settle(self, now_s: float) -> None:
        """Draw the consequences of whatever has happened."""
        roster, members = self._roster, self.view.members
        if any(self._breaks(member) for member in members):
            self.broken = self.view.number
        leavers = roster.leavers(members)
        staying = [member for member in members if self._stays(member)]
        awaited = [member for member in staying if not self._waits(member)]
        outside = [one for one in roster.at_door() if self._stands_outside(one) and one.key not in leavers]
        fit = self.fit if staying else min((one.fit for one in outside), default=self.fit)
        joiners = [one.key for one in outside if one.fit == fit]
        stayers = [member.key for member in staying]
        chosen = choose(stayers, joiners, self.terms.max_workers, roster.is_home)
        absent = (
            [] if staying or not chosen or len(chosen) == self.terms.max_workers else roster.absent({*joiners}, now_s)
        )
        self.awaited = _told([*map(str, awaited), *absent])
        if awaited:
            restless = any(self._status(member).state == "going" for member in awaited) or leavers.intersection(stayers)
            if restless or len(awaited) < len(staying) or set(chosen) != set(stayers):
                self.change = self.view.number
            return
        # whoever is left alone in a fit that others have finished ends it with those that there are
        enough = len(chosen) >= self.terms.min_workers or fit < self.over
        if chosen and enough and not absent and now_s >= self._learns_until_s:
            self._form(chosen, fit)

    def _form(self, chosen: tuple[str, ...], fit: int) -> None:
        before, number = {member.key for member in self.view.members}, self.view.number + 1
        members = tuple(_member(rank, self._roster.workers[key].status) for rank, key in enumerate(chosen))
        self.view, self.fit, self._learns = View(number, members), fit, False
        self.awaited = _told([str(member) for member in members])
        self.notices += [Notice("joined", str(one), one.key, view=number) for one in members if one.key not in before]
        self.notices.append(Notice("view", ", ".join(map(str, members)), view=number))

    def _lose(self, key: str, cause: str) -> None:
        """`key` has ended or is put out. If it still had a part in the view, that is broken."""
        roster = self._roster
        if key in roster.out:
            return
        known, member = roster.workers.get(key), self.view.member(key)
        state = "" if known is None else known.status.state
        ended_well = state == "gone" or (state == "finished" and key not in roster.evict)
        if member is not None and self._stays(member):
            self.broken = self.view.number
        roster.put_out(key, "it has left the run" if ended_well else cause, lost=known is not None and not ended_well)
        if known is not None:
            who = str(member) if member is not None else f"process {known.status.pid} on {known.status.host}"
            self.notices.append(Notice("left", who, key) if ended_well else Notice("lost", who, key, cause))

    def _evict(self, key: str, cause: str) -> None:
        """`key` is put out; if it has not gone by itself, its agent is to kill it."""
        status = self._roster.workers[key].status
        if status.state != "gone":
            self._roster.evict[key] = status.agent
        self._lose(key, cause)

    def _learn(self, status: WorkerStatus, now_s: float) -> None:
        """We were started again, and a worker is in a view that our journal does not know, or does not know it in. That
        view is over: all that have a part in it get a lease to say so, and the next one goes on from there."""
        if status.view > self.view.number:
            self.view, self.fit = View(status.view, ()), status.fit
        if 0 < status.view == self.view.number and self.view.member(status.key) is None:
            self.view = replace(self.view, members=(*self.view.members, _member(self.view.size, status)))
            self.broken = self.view.number
            self._learns_until_s = now_s + self.terms.lease_s

    # questions about members of the view

    def _status(self, member: Member) -> WorkerStatus:
        return self._roster.workers[member.key].status

    def _stays(self, member: Member) -> bool:
        """Whether it has a part in the view or will have one in the next: not lost, not gone, the fit not finished."""
        known = self._roster.workers.get(member.key)
        return known is not None and known.status.state != "gone" and not self._has_finished(known.status)

    def _has_finished(self, status: WorkerStatus) -> bool:
        return status.fit > self.fit or (status.fit == self.fit and status.state == "finished")

    def _waits(self, member: Member) -> bool:
        """Whether a member that stays has left the view, and waits for the next."""
        status = self._status(member)
        return status.state in ("left", "broken") and status.view == self.view.number

    def _breaks(self, member: Member) -> bool:
        """Whether a member left in the middle of something, or left the run without ever having come into the view."""
        known = self._roster.workers.get(member.key)
        if known is None:
            return False  # whether that breaks the view was decided when it was lost
        state, here = known.status.state, known.status.view == self.view.number
        return (state == "broken" and here) or (state == "gone" and not here)

    def _stands_outside(self, status: WorkerStatus) -> bool:
        """Whether one at the door is to be let in: its fit is not over, and it was not let in just now."""
        admitted = self.view.member(status.key) is not None and status.fit <= self.fit
        return status.fit >= self.over and not admitted

    # for the administrator, and for the journal

    def report(self) -> dict[str, Any]:
        """How the run stands, in plain values."""
        roster, targets = self._roster, self._roster.targets()
        workers = []
        for key, known in roster.workers.items():
            member, one, note = self.view.member(key), known.status, roster.note(key)
            rank = None if member is None else member.rank
            step, phase = (None, None) if note is None else (note.step, note.phase)
            workers.append({"key": key, "agent": one.agent, "host": one.host, "pid": one.pid, "rank": rank,
                            "state": one.state, "view": one.view, "fit": one.fit, "step": step,
                            "phase": phase})  # fmt: skip
        agents = []
        for name, agent in roster.agents.items():
            host, home, capacity = agent.status.host, agent.status.home, agent.status.capacity
            agents.append({"agent": name, "host": host, "home": home, "capacity": capacity, "target": targets[name]})
        return {"view": self.view.to_json(), "fit": self.fit, "workers": workers, "agents": agents,
                "wanted": roster.wanted, "awaited": list(self.awaited)}  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """All that must not be forgotten."""
        return {"view": self.view.to_json(), "fit": self.fit, "broken": self.broken, "change": self.change,
                "over": self.over, "roster": self._roster.to_json()}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any], terms: Terms, now_s: float) -> Membership:
        """A coordinator's next life. Leases begin anew, so that nobody is put out by its death."""
        membership = cls(terms)
        membership.view, membership.fit = View.from_json(data["view"]), int(data["fit"])
        membership.broken, membership.change = int(data["broken"]), int(data["change"])
        membership.over = int(data["over"])
        membership._roster.restore(data["roster"], now_s)
        membership._ticked_s = now_s  # until the first tick we cannot hear anyone, and nobody is to blame for that
        return membership


def _member(rank: int, one: WorkerStatus) -> Member:
    return Member("worker", rank, one.host, one.pid, one.key, one.agent, one.seat, one.address)


def _told(names: list[str]) -> tuple[str, ...]:
    more = len(names) - _NAMES_TOLD
    return (*names[:_NAMES_TOLD], f"{more} more") if more > 0 else tuple(names)
