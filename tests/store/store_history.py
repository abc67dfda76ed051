"""Workers that lease tasks from a shard and commit updates, with everything that can happen to them and to it.

Task number n adds 1 to element n of `done`. So however a history went, `done` must show which tasks are committed: a 0
where a committed task has lost its update, a 2 where one counted twice, a fraction where anything leaked. The world
keeps its own account of all that, and compares it after every event.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.core.consistency import Consistency
from shoal.store import answers
from shoal.store import operations as ops
from shoal.store.keys import DenseKey, Slice, SparseKey
from shoal.store.shard import Shard

DIRT = 0.125  # added by parts that must never be committed


@dataclass
class Worker:
    """What a worker knows: its task, the version it has read, and whether it has staged its update."""

    name: str
    sequence: int = 0
    task: int | None = None
    read_version: int = 0
    transaction: str = ""
    alive: bool = True
    sent: list[ops.Change] = field(default_factory=list)  # to be repeated
    answered: list[Any] = field(default_factory=list)


class World:
    """A shard, its backup, and workers; and what must be true of them."""

    def __init__(self, tasks: int, consistency: Consistency, crew: int) -> None:
        self.tasks, self.consistency = tasks, consistency
        self.primary, self.backup = Shard(), Shard()
        self.workers: dict[str, Worker] = {}
        self.clocks: dict[str, int] = {}  # our own account, of the living
        self.committed: set[int] = set()
        self.holders: dict[int, str] = {}
        self.pushes = 0
        self.staged: dict[str, set[int]] = {}
        self.commits = 0
        self.events: Counter[str] = Counter()
        self.admin = Worker("admin")
        dense = [DenseKey("done", (tasks,), "float64"), DenseKey("pushes", (3,), "float64")]
        table = SparseKey("table", 5, (2,), "float64")
        slices = [*(Slice(key, 0, key.units) for key in dense), Slice(table, 0, 5)]
        self.done_at, self.pushes_at, self.table_at = (one.label for one in slices)
        self.ask(self.admin, ops.Declare, tuple(ops.Holding(one, "add") for one in slices))
        names = tuple(f"worker {number}" for number in range(crew))
        for name in names:
            self.workers[name] = Worker(name)
            self.clocks[name] = 0
        self.ask(self.admin, ops.Open, 1, tasks, str(consistency), names)

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.alive]

    # ---- speaking to the shards

    def do(self, operation: ops.Operation) -> answers.Answer:
        """The backup hears all changes, in the same order."""
        answer = self.primary.do(operation)
        if isinstance(operation, ops.Change):
            self.backup.do(operation)
        return answer

    def ask(self, worker: Worker, kind: type[ops.Change], *given: Any, **named: Any) -> answers.Answer:
        worker.sequence += 1
        change = kind(*given, **named, client=worker.name, sequence=worker.sequence)
        answer = self.do(change)
        worker.sent, worker.answered = [*worker.sent[-5:], change], [*worker.answered[-5:], answer]
        return answer

    # ---- what happens

    def repeat(self, worker: Worker, pick: int) -> None:
        """An answer was lost on its way: the same answer, and nothing is changed."""
        if worker.sent:
            at = pick % len(worker.sent)
            before = self.primary.digest()
            again = self.do(worker.sent[at])
            if isinstance(worker.sent[at], ops.PushPull):  # it reads what is there by now
                assert isinstance(again, answers.Pulled)
            else:
                assert again == worker.answered[at]
            assert self.primary.digest() == before, "repeating a request has changed something"

    def lease(self, worker: Worker) -> None:
        would_wait = self.primary.would_wait(ops.Lease(worker.name, client=worker.name, sequence=worker.sequence + 1))
        answer = self.ask(worker, ops.Lease, worker.name)
        assert (would_wait is not None) == isinstance(answer, answers.Wait)
        clock, slowest = self.clocks[worker.name], min(self.clocks.values())
        if isinstance(answer, answers.Leased):
            if worker.task is None:
                self.check_lease(answer.task, clock, slowest)
            assert worker.task in (None, answer.task)
            worker.task, self.holders[answer.task] = answer.task, worker.name
            worker.read_version = answer.version
        elif isinstance(answer, answers.Wait):
            self.check_wait(worker, answer, clock, slowest)
        else:
            assert isinstance(answer, answers.NothingLeft), answer
            assert self.committed == set(range(self.tasks))
        self.events[type(answer).__name__] += 1

    def check_lease(self, task: int, clock: int, slowest: int) -> None:
        bound = self.consistency.bound
        assert bound is None or clock - slowest <= bound, "a worker has run ahead of the bound"
        assert task not in self.committed, "a committed task is given out again"
        assert task not in self.holders, "a task is in two hands"

    def check_wait(self, worker: Worker, answer: answers.Wait, clock: int, slowest: int) -> None:
        bound = self.consistency.bound
        assert worker.name not in answer.workers
        assert set(answer.workers) <= self.clocks.keys(), "a wait for somebody who is gone"
        if answer.cause == "bound":
            assert bound is not None
            assert clock > slowest + bound
            assert all(self.clocks[name] == slowest for name in answer.workers)
        else:
            assert set(range(self.tasks)) == self.committed | self.holders.keys()
            assert set(answer.workers) == set(self.holders.values())

    def stage(self, worker: Worker, dirt: bool) -> None:
        """The update of the worker's task; and perhaps a part of somebody who is not in the commit."""
        if worker.task is None:
            return
        if not worker.transaction:
            worker.transaction = f"{worker.name} task {worker.task} try {worker.sequence}"
        update = np.zeros(self.tasks)
        update[worker.task] = 1.0
        self.ask(worker, ops.Stage, worker.transaction, 0, (ops.Update(self.done_at, update),))
        self.staged.setdefault(worker.transaction, set()).add(0)
        if dirt:
            update = np.full(self.tasks, DIRT)
            self.ask(worker, ops.Stage, worker.transaction, 7, (ops.Update(self.done_at, update),))
            self.staged[worker.transaction].add(7)

    def commit(self, worker: Worker, task: int | None) -> None:
        """Commit what is staged as `task`: its own, or, by mistake or too late, another."""
        number = worker.task if task is None else task
        if number is None or not worker.transaction:
            return
        rightful = self.holders.get(number) == worker.name and worker.name in self.clocks
        ready = worker.transaction in self.staged
        answer = self.ask(
            worker,
            ops.Commit,
            transaction=worker.transaction,
            parts=(0,),
            record=worker.transaction.encode(),
            read_version=worker.read_version,
            task=ops.Task(1, number, worker.name),
        )
        assert isinstance(answer, answers.Committed) == (rightful and ready), answer
        self.events["commits" if rightful else "refused"] += 1
        if isinstance(answer, answers.Committed):
            self.check_staleness(answer)
            self.commits += 1
            self.committed.add(number)
            self.clocks[worker.name] += 1
            del self.holders[number]
            del self.staged[worker.transaction]
            worker.task, worker.transaction = None, ""

    def check_staleness(self, answer: answers.Committed) -> None:
        assert answer.staleness >= 0
        assert answer.number == self.commits + 1

    def settle(self, worker: Worker) -> None:
        """Throw away what was staged and cannot be committed any more."""
        if worker.transaction:
            self.ask(self.admin, ops.Drop, worker.transaction)
            self.staged.pop(worker.transaction, None)
            worker.transaction = ""

    def lose(self, worker: Worker) -> None:
        """It is gone, and everyone knows. (It may speak once more all the same: see `commit`.)"""
        worker.alive = False
        self.clocks.pop(worker.name, None)
        self.holders = {task: name for task, name in self.holders.items() if name != worker.name}
        self.ask(self.admin, ops.Release, worker.name)

    def join(self, name: str) -> None:
        if name not in self.clocks:
            worker = self.workers.setdefault(name, Worker(name))
            self.settle(worker)
            worker.alive, worker.task = True, None
            self.clocks[name] = min(self.clocks.values(), default=0)
        self.ask(self.admin, ops.Join, name)

    def push(self, worker: Worker, pick: int) -> None:
        self.pushes += 1
        rows = np.array([pick % 5, (pick // 5) % 5])
        updates = (ops.Update(self.pushes_at, np.ones(3)), ops.Update(self.table_at, np.ones((2, 2)), rows))
        if pick % 2:
            self.ask(worker, ops.Push, updates)
        else:
            wanted = (ops.Wanted(self.pushes_at),)
            answer = self.ask(worker, ops.PushPull, updates, wanted)
            assert isinstance(answer, answers.Pulled)
            assert answer.found[0].values is not None
            assert answer.found[0].values.tolist() == [self.pushes] * 3

    def forget(self, pick: int) -> None:
        self.ask(self.admin, ops.Forget, max(0, self.commits - pick % 4))

    def restart(self) -> None:
        """The shard goes to a disk and comes back; nothing is changed by that."""
        meta, arrays = self.primary.dump()
        before = self.primary.digest()
        self.primary = Shard.load(json.loads(json.dumps(meta)), arrays)
        assert self.primary.digest() == before

    def take_over(self) -> None:
        """The backup becomes primary, and gets a backup of its own."""
        assert self.backup.digest() == self.primary.digest(), "primary and backup differ"
        meta, arrays = self.backup.dump(copy=False)
        self.primary, self.backup = self.backup, Shard.load(meta, arrays)

    # ---- what must be true

    def check(self) -> None:
        """After every event: parameters and committed tasks say the same, and nobody is stuck."""
        done, pushes, table = (self._values(where) for where in (self.done_at, self.pushes_at, self.table_at))
        assert done.tolist() == [float(task in self.committed) for task in range(self.tasks)]
        assert pushes.tolist() == [self.pushes] * 3
        assert table.sum() == 4 * self.pushes
        progress = self.primary.do(ops.GetProgress())
        assert isinstance(progress, answers.Progress)
        assert set(progress.committed) == self.committed
        assert progress.clocks == self.clocks
        assert {task: name for name, task in progress.leases.items()} == self.holders
        assert sum(progress.staleness.values()) == self.commits
        assert progress.version == self.commits + self.pushes
        staged = self.primary.do(ops.Staged())
        assert isinstance(staged, answers.StagedParts)
        assert dict(staged.transactions) == {name: tuple(sorted(parts)) for name, parts in self.staged.items()}
        self.check_progress()

    def check_progress(self) -> None:
        """While tasks are left and somebody lives, somebody holds one or may have one."""
        if len(self.committed) < self.tasks and self.clocks and not self.holders:
            offers = [self.primary.board.offer(name) for name in self.clocks]
            assert any(hasattr(offer, "task") for offer in offers), "everybody waits for everybody"

    def _values(self, where: str) -> Any:
        pulled = self.primary.do(ops.Pull((ops.Wanted(where),)))
        assert isinstance(pulled, answers.Pulled)
        return pulled.found[0].values

    def come_to_the_end(self, chance: random.Random) -> None:
        """Left in peace, the living do all that is left, in as many rounds as there are tasks."""
        self.join("the last")
        for _ in range(self.tasks):
            if len(self.committed) == self.tasks:
                break
            for worker in chance.sample(self.living, len(self.living)):
                self.lease(worker)
                self.stage(worker, dirt=False)
                self.commit(worker, None)
        self.check()
        assert self.committed == set(range(self.tasks)), "tasks were left undone"
        assert isinstance(self.ask(self.living[0], ops.Lease, self.living[0].name), answers.NothingLeft)
        leads = self.primary.board.leads
        assert self.consistency.bound is None or max(leads, default=0) <= self.consistency.bound
        assert self.backup.digest() == self.primary.digest(), "primary and backup differ"
