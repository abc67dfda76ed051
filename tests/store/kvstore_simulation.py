"""Two processes of one post, their keeper and some clients, on a virtual clock: real replicas, a network of delays, and
processes that freeze, wake up and die. No sockets, no threads, no waiting: a seed is a history."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.comm.bulk import Message, RequestFailed
from shoal.comm.keys import RunKeys
from shoal.core.errors import PeerLost
from shoal.store import feed, follower, leader, replica
from shoal.store.keys import DenseKey, Slice
from shoal.store.operations import Declare, Holding, Pull, Push, Update, Wanted
from shoal.store.replica import Replica
from shoal.store.spec import ServerSpec
from shoal.store.state import pack_command, unpack_reply
from shoal.store.succession import Assignment, Report, Succession
from shoal.store.turned_away import TurnedAway

LEASE_S = 1.0
BEAT_S = 0.14
EACH = 25  # pushes of each client
COUNT = Slice(DenseKey("count", (1,), "float64"), 0, 1)


class BrokenPromise(AssertionError):
    """What was promised to clients did not hold."""


@dataclass
class Process:
    """One that runs a replica. While it is frozen, all that happens to it waits."""

    name: str
    world: World
    alive: bool = True
    frozen: bool = False

    def __post_init__(self) -> None:
        self.inbox: list[Callable[[], None]] = []
        self.replica = Replica(ServerSpec(self.name, 0, self.world.keys, lease_s=LEASE_S), self)

    # the loop of its server

    def call(self, function: Callable[[], None]) -> None:
        self.happen(function)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        self.world.at(seconds, lambda: self.happen(function))

    def happen(self, function: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.inbox.append(function)
            return
        before, self.world.current = self.world.current, self
        try:
            function()
        finally:
            self.world.current = before

    def freeze(self) -> None:
        self.frozen = True

    def wake(self) -> None:
        self.frozen = False
        inbox, self.inbox = self.inbox, []
        for function in inbox:
            self.happen(function)

    def handle(self, message: Message, reply: Any) -> None:
        kind = message.head["k"]
        peer: Any = SimpleNamespace(gone=False, buffer=lambda size: np.empty(size, np.uint8))
        try:
            if kind == "ask":
                self.replica.serve(peer, message, reply)
            elif kind == "beat":
                assignment = Assignment.from_plain(message.head["assignment"])
                report = self.replica.hear(assignment, message.head["addresses"])
                reply(Message({"report": report.to_plain()}))
            else:
                self.replica.take(peer, message, reply)
        except TurnedAway as no:
            reply.fail(no)


class Connection:
    """From somebody to a process, in order both ways; stands in for `BulkClient`."""

    def __init__(self, world: World, target: Process | None, owner: Process | None) -> None:
        self.world, self.target, self.owner = world, target, owner
        self._there_s = self._back_s = 0.0
        self._closed = False

    def submit(self, message: Message, into: object = None) -> Future[Message]:
        future: Future[Message] = Future()
        world, target = self.world, self.target
        copy = Message(dict(message.head), [array.copy() for array in message.arrays])
        self._there_s = max(self._there_s, world.now_s + world.delay())

        def answer(give: Callable[[], None]) -> None:
            self._back_s = max(self._back_s, world.now_s + world.delay())

            def there() -> None:
                if not self._closed and self.owner is not None:
                    self.owner.happen(give)
                elif not self._closed:
                    give()

            world.at(self._back_s - world.now_s, there)

        def respond(reply: Message) -> None:
            kept = Message(dict(reply.head), [array.copy() for array in reply.arrays])
            answer(lambda: future.set_result(kept))

        class Responder:
            def __call__(self, reply: Message) -> None:
                respond(reply)

            def fail(self, error: Exception) -> None:
                answer(lambda: future.set_exception(RequestFailed("it", type(error).__name__, str(error))))

        def arrive() -> None:
            if self.owner is not None and not self.owner.alive:
                return  # what a host has sent need not arrive when it dies
            if target is None or not target.alive:
                answer(lambda: future.set_exception(PeerLost("it is gone")))
            else:
                target.happen(lambda: target.handle(copy, Responder()))
                world.pending.append((target, lambda: answer(lambda: _lose(future))))

        world.at(self._there_s - world.now_s, arrive)
        return future

    def close(self) -> None:
        self._closed = True


def _lose(future: Future[Message]) -> None:
    if not future.done():
        future.set_exception(PeerLost("it is gone"))


class World:
    """Clock, network, processes, keeper."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.now_s = 1000.0
        self.keys = RunKeys.make()
        self.current: Process | None = None
        self.broken = ""  # noted here: what a callback of a future raises is swallowed
        self.pending: list[tuple[Process, Callable[[], None]]] = []  # questions that a death leaves unanswered
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for module in (feed, follower, leader, replica):
            patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        patch.setattr(feed, "BulkClient", self._connect)
        self.succession = Succession(LEASE_S, replicas=2)
        self.processes: dict[str, Process] = {}
        self._asked: dict[str, bool] = {}
        self.unheard: set[str] = set()  # the keeper cannot reach these
        for place in "ab":
            self.start(place)
        self.succession.begin(1, "")
        self.beat()

    def delay(self) -> float:
        return self.random.choice([0.001, 0.002, 0.01, 0.05])

    def at(self, delay_s: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + max(0.0, delay_s), next(self._order), function))

    def run_until(self, condition: Callable[[], bool], limit_s: float = 120.0) -> None:
        until_s = self.now_s + limit_s
        while not condition():
            assert self._events, "nothing happens any more"
            self.now_s, _, function = heapq.heappop(self._events)
            assert self.now_s < until_s, "waited in vain"
            function()
            if self.broken:
                raise BrokenPromise(self.broken)

    def run_for(self, seconds: float) -> None:
        over: list[bool] = []
        self.at(seconds, lambda: over.append(True))
        self.run_until(lambda: bool(over))

    def _connect(self, address: str, *rest: object, **more: object) -> Connection:
        return Connection(self, self.processes.get(address), self.current)

    # processes

    def start(self, place: str) -> None:
        name = f"{place}{len(self.processes)}"
        self.processes[name] = Process(name, self)
        self.succession.started(name, self.now_s)

    def primary(self) -> Process:
        return self.processes[self.succession.assignment.primary]

    def calm(self) -> bool:
        """Whether there are two copies, so that one may be lost."""
        assignment = self.succession.assignment
        both = [self.processes[name] for name in (assignment.primary, assignment.backup) if name]
        return self.succession.settled and all(one.alive and not one.frozen for one in both)

    def kill(self, process: Process) -> None:
        process.alive = False
        for target, lose in self.pending:
            if target is process:
                lose()
        self.at(0.02, lambda: self.succession.ended(process.name))
        self.at(1.0, lambda: self.start(process.name[0]))

    # the keeper

    def beat(self) -> None:
        self.succession.decide(self.now_s)
        assert not self.succession.lost, "this simulation has no snapshots"
        head = {
            "k": "beat",
            "assignment": self.succession.assignment.to_plain(),
            "addresses": {name: name for name in self.processes},
        }
        for name in self.succession.living:
            if not self._asked.get(name) and name not in self.unheard:
                self._asked[name] = True
                future = Connection(self, self.processes[name], None).submit(Message(dict(head)))
                future.add_done_callback(partial(self._heard, name))
        self.at(BEAT_S, self.beat)

    def _heard(self, name: str, done: Future[Message]) -> None:
        self._asked[name] = False
        if done.exception() is None:
            self.succession.heard(Report.from_plain(done.result().head["report"]), self.now_s)


class Asker:
    """Asks one process at a time, once, and looks at what comes back."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sequence = 0
        self.acknowledged = 0

    def declare(self, process: Process) -> None:
        self.sequence += 1
        declared = self._ask(
            process, Declare(client="asker", sequence=self.sequence, holdings=(Holding(COUNT, "add"),))
        )
        self.world.run_until(declared.done)
        declared.result()

    def push(self, process: Process, anew: bool = True) -> Future[Message]:
        """Count up, under the next number or under the last one."""
        self.sequence += anew
        update = (Update(COUNT.label, np.ones(1)),)
        future = self._ask(process, Push(client="asker", sequence=self.sequence, updates=update))

        def note(done: Future[Message]) -> None:
            if done.exception() is None:
                self.acknowledged = max(self.acknowledged, self.sequence - 1)

        future.add_done_callback(note)
        return future

    @property
    def counted(self) -> int:
        """How many times it has asked to count, repetitions aside."""
        return self.sequence - 1

    def read(self, process: Process) -> float | None:
        """What the process says how many there are; None if it says nothing of it."""
        future = self._ask(process, Pull((Wanted(COUNT.label),)))
        over: list[bool] = []
        self.world.at(3 * LEASE_S, lambda: over.append(True))
        self.world.run_until(lambda: future.done() or bool(over))
        if not future.done() or future.exception() is not None:
            return None
        answer = unpack_reply(future.result().head, list(future.result().arrays))
        return float(answer.found[0].values[0])

    def _ask(self, process: Process, command: Any) -> Future[Message]:
        fields, arrays = pack_command(command)
        return Connection(self.world, process, None).submit(Message({"k": "ask", "g": 1, **fields}, arrays))


class Client:
    """Counts up, one push after the other, and reads in between. It asks anybody, again and again, until it is
    answered, and takes any answer to any of its attempts."""

    def __init__(self, world: World, name: str, ledger: Ledger, renumber: bool = False) -> None:
        self.world, self.name, self.ledger, self.renumber = world, name, ledger, renumber
        self.sequence = 0
        self.left = 0

    def count(self, times: int) -> None:
        self.left = times
        self._next()

    def _next(self) -> None:
        if self.left == 0:
            return
        self.left -= 1
        self.sequence += 1
        sequence = self.sequence
        self.ledger.issued += 1

        def make(again: int) -> Any:
            number = sequence + again * 1_000_000 if self.renumber else sequence
            return Push(client=self.name, sequence=number, updates=(Update(COUNT.label, np.ones(1)),))

        self._ask(make, self._counted)

    def _counted(self, answer: Any) -> None:
        self.ledger.acknowledged += 1
        at_least = self.ledger.acknowledged

        def check(read: Any) -> None:
            value = float(read.found[0].values[0])
            if not at_least <= value <= self.ledger.issued:
                self.world.broken = (
                    f"{self.name} read {value:.0f}, of {self.ledger.issued} that were issued, "
                    f"when {at_least} were acknowledged"
                )
            self._next()

        self._ask(lambda again: Pull((Wanted(COUNT.label),)), check)

    def _ask(self, make: Callable[[int], Any], take: Callable[[Any], None]) -> None:
        answered: list[bool] = []

        def heard(done: Future[Message]) -> None:
            if done.exception() is None and not answered:
                answered.append(True)
                message = done.result()
                take(unpack_reply(message.head, list(message.arrays)))

        def attempt(number: int) -> None:
            if answered:
                return
            fields, arrays = pack_command(make(number))
            processes = list(self.world.processes.values())
            process = self.world.random.choice([one for one in processes if one.alive] + processes[-1:])
            connection = Connection(self.world, process, None)
            connection.submit(Message({"k": "ask", "g": 1, **fields}, arrays)).add_done_callback(heard)
            self.world.at(self.world.random.choice([0.05, 0.2, 0.5]), lambda: attempt(number + 1))

        attempt(0)

    def declare(self) -> None:
        done: list[bool] = []
        self.sequence += 1
        sequence = self.sequence
        self._ask(
            lambda again: Declare(client=self.name, sequence=sequence, holdings=(Holding(COUNT, "add"),)),
            lambda answer: done.append(True),
        )
        self.world.run_until(lambda: bool(done))


@dataclass
class Ledger:
    issued: int = 0
    acknowledged: int = 0


def play(seed: int, patch: pytest.MonkeyPatch, renumber: bool = False) -> World:
    """A history: clients count while the primary or its backup is killed, or frozen and woken, one failure at a time.
    Raises `BrokenPromise` when a promise is broken."""
    world, ledger = World(seed, patch), Ledger()
    clients = [Client(world, f"client {number}", ledger, renumber) for number in range(3)]
    world.run_until(world.calm)
    clients[0].declare()
    for client in clients:
        client.count(EACH)
    for _ in range(3):
        world.run_until(world.calm)
        world.run_for(world.random.random())
        assignment = world.succession.assignment
        victim = world.processes[world.random.choice([assignment.primary, assignment.primary, assignment.backup])]
        if world.random.random() < 0.5:
            world.kill(victim)
        else:
            victim.freeze()
            world.run_for(world.random.choice([0.3, LEASE_S, 1.5, 3.0]))
            victim.wake()
        world.run_for(world.random.random())
    world.run_until(lambda: ledger.acknowledged == ledger.issued == 3 * EACH)
    world.run_until(world.calm)
    world.run_for(2 * LEASE_S)
    _check_copies(world, ledger)
    return world


def _check_copies(world: World, ledger: Ledger) -> None:
    assignment = world.succession.assignment
    first = world.processes[assignment.primary].replica.leader
    second = world.processes[assignment.backup].replica.follower
    assert first is not None
    assert second is not None
    assert second.state is not None
    answer: Any = first.state.do(Pull((Wanted(COUNT.label),)))
    if float(answer.found[0].values[0]) != ledger.issued:
        raise BrokenPromise(f"{answer.found[0].values[0]:.0f} of {ledger.issued} pushes were applied")
    if first.state.digest() != second.state.digest():
        raise BrokenPromise("primary and backup hold different bytes")
