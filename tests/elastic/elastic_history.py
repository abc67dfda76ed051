"""A run in miniature: workers that behave as real ones do, on a clock of their own, for random histories."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from elastic_cases import status

from shoal.core.cursor import Batches, Cursor
from shoal.core.world import View
from shoal.elastic.membership import Membership
from shoal.elastic.status import AgentStatus, WorkerNote, WorkerStatus, WorkerWord
from shoal.elastic.terms import Terms

BATCHES = Batches(samples=23, global_batch=5, grain=2)
Sample = tuple[int, int]  # epoch and position in its order


@dataclass
class Worker:
    """A process. `cursor` and `seen` are its live state, None before it has any: what has shaped its model."""

    status: WorkerStatus
    view: View | None = None
    cursor: Cursor | None = None
    seen: tuple[Sample, ...] = ()
    alive: bool = True
    frozen: bool = False
    asked_to_go: bool = False
    over: bool = False  # it has nothing left to do
    fits: int = 5  # calls of fit() in its script

    @property
    def active(self) -> bool:
        return self.alive and not self.frozen and not self.over

    @property
    def inside(self) -> bool:
        return self.status.state in ("in", "going")


class Run:
    """All of it, with the laws checked at every turn."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.now_s = terms, 10.0
        self.membership = Membership(terms)
        self.workers: dict[str, Worker] = {}
        self.agents = {"home": True, "far": False}
        self.views: dict[int, View] = {0: View(0, ())}
        self.committed_in = 0  # the view of the last commit
        self.commits = 0
        self.out: set[str] = set()

    # what happens

    def start(self, agent: str) -> None:
        key = f"w{len(self.workers)}"
        self.workers[key] = Worker(status(key, agent=agent))
        self.report(agent)

    def report(self, agent: str) -> None:
        """An agent states what it sees."""
        notes = {
            key: WorkerNote(1, ended=not one.alive, cause="killed")
            for key, one in self.workers.items()
            if one.status.agent == agent
        }
        self._before()
        self.membership.on_agent(AgentStatus(agent, f"host-{agent}", self.agents[agent], 4, notes), self.now_s)
        self._after()

    def speak(self, key: str) -> None:
        """A worker states its status, hears the coordinator's word and does as it is told."""
        worker = self.workers[key]
        self._say(worker)
        word = self.membership.word_for_worker(key)
        if word.out:
            worker.alive = False
        else:
            self._obey(worker, word)

    def _say(self, worker: Worker) -> None:
        self._before()
        self.membership.on_worker(worker.status, self.now_s)
        self._after()

    def _obey(self, worker: Worker, word: WorkerWord) -> None:
        mine = worker.status
        if mine.state == "door" and word.over > mine.fit:
            self._next_fit(worker)
        elif mine.state == "door" and (worker.asked_to_go or word.leave):
            worker.status, worker.over = replace(mine, state="gone"), True
            self._say(worker)
        elif mine.state in ("door", "left", "broken") and word.view is not None and word.view.number > mine.view:
            broken = word.broken >= word.view.number
            worker.view = word.view
            worker.status = replace(mine, state="broken" if broken else "in", view=word.view.number)
        elif worker.inside and word.broken >= mine.view:
            worker.status = replace(mine, state="broken")
        elif worker.inside and (worker.asked_to_go or word.leave):
            worker.status = replace(mine, state="going")

    def _next_fit(self, worker: Worker) -> None:
        worker.cursor, worker.seen = None, ()
        if worker.status.fit + 1 < worker.fits:
            worker.status = replace(worker.status, fit=worker.status.fit + 1, state="door")
        else:
            worker.over, worker.alive = True, False

    def together(self) -> list[Worker]:
        """The members of the newest view, if all of them are in it and can take a step; else none."""
        view = self.membership.view
        members = [self.workers[member.key] for member in view.members]
        here = all(one.active and one.inside and one.status.view == view.number for one in members)
        return members if here and members and self.membership.broken < view.number else []

    def step(self, weights: list[float], applied: int) -> None:
        """A step of the newest view. `applied`: how many of its members commit it before one is killed; all, if it is
        as many as there are."""
        members = self.together()
        if not members:
            return
        number = members[0].status.view
        assert number >= self.committed_in, "an older view has taken a step"
        self.committed_in = number
        self.commits += 1
        self._meet(members)
        cursor, seen = members[0].cursor, members[0].seen
        assert cursor is not None
        batch = BATCHES.at(cursor)
        shares = [batch.share(rank, weights[: len(members)]) for rank in range(len(members))]
        done = tuple((cursor.epoch, at) for share in shares for grain in share for at in range(grain.start, grain.stop))
        assert sorted(done) == [(cursor.epoch, at) for at in range(batch.start, batch.stop)], "a sample lost or doubled"
        for one in members[:applied]:
            one.cursor, one.seen = BATCHES.after(cursor), (*seen, *done)
        if applied < len(members):
            members[-1].alive = False
            for one in members[:-1]:
                one.status = replace(one.status, state="broken")

    def _meet(self, members: list[Worker]) -> None:
        """The live state of the furthest is everybody's."""
        best = max(members, key=lambda one: -1 if one.cursor is None else one.cursor.step)
        for one in members:
            one.cursor, one.seen = best.cursor or Cursor(), best.seen

    def leave_together(self) -> None:
        """At the end of a step, all members leave the view if one of them has heard that it should be left."""
        members = self.together()
        if members and self.membership.change >= members[0].status.view:
            for one in members:
                going = one.status.state == "going"
                one.status = replace(one.status, state="gone" if going else "left")
                one.over = going

    def finish_together(self) -> None:
        for one in self.together():
            one.status = replace(one.status, state="finished")

    def move_on(self, key: str) -> None:
        """A worker that has finished a fit goes on in its script."""
        if self.workers[key].status.state == "finished":
            self._next_fit(self.workers[key])

    def scale(self, workers: int) -> None:
        self._before()
        self.membership.on_scale(workers, self.now_s)
        self._after()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self._before()
        self.membership.tick(self.now_s)
        self._after()

    def restart(self) -> None:
        """The coordinator is killed and started again."""
        before = self.membership.view, self.membership.broken, self.membership.over
        saved = json.loads(json.dumps(self.membership.to_json()))
        self.membership = Membership.from_json(saved, self.terms, self.now_s)
        assert before == (self.membership.view, self.membership.broken, self.membership.over)

    def beat(self) -> None:
        """One beat of everyone who can speak."""
        for key, worker in self.workers.items():
            if worker.active:
                self.speak(key)
        for agent in self.agents:
            self.report(agent)
        self.pass_time(self.terms.lease_s / 6)

    # the laws

    def _before(self) -> None:
        self._number = self.membership.view.number

    def _after(self) -> None:
        view, before = self.membership.view, self.views[self._number]
        keys = [member.key for member in view.members]
        assert view.number >= self._number, "numbers only grow"
        assert self.views.setdefault(view.number, view) == view, "two views have one number"
        assert len(set(keys)) == len(keys), "a key is in a view twice"
        self.out |= self.membership._roster.out.keys()
        if view.number == self._number:
            return
        assert view.number == self._number + 1
        assert not self.out & set(keys), "one that was out has come back"
        roster = self.membership._roster.workers
        assert len(keys) >= self.terms.min_workers or self.membership.fit < self.membership.over, "no quorum"
        assert self.terms.max_workers is None or len(keys) <= self.terms.max_workers
        waiting = [
            member.key
            for member in before.members
            if member.key in roster and roster[member.key].status.state in ("left", "broken")
            and roster[member.key].status.view == before.number
        ]  # fmt: skip
        assert set(waiting) <= set(keys), "a survivor is left behind"
        assert [key for key in keys if key in waiting] == waiting, "survivors have lost their order"
        places = [(not self.agents[member.agent], member.key not in waiting) for member in view.members]
        assert places == sorted(places), "home comes first, and at each place those that were there before"
        for member in before.members:
            one = roster.get(member.key)
            assert one is None or one.status.state in ("left", "broken", "gone", "finished", "door"), (
                "one is still inside"
            )

    def check_samples(self) -> None:
        """What has shaped any model is a beginning of the data, each sample once."""
        for worker in self.workers.values():
            if worker.cursor is not None:
                whole = [(epoch, at) for epoch in range(worker.cursor.epoch + 1) for at in range(BATCHES.samples)]
                assert sorted(worker.seen) == whole[: worker.cursor.samples]
