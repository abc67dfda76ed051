"""An agent: holds the workers of one host. It forks them, hears them, looks whether they live and get on, kills those
that are out, and tells the coordinator how it stands.

Everything happens in the thread that owns it, which waits on a selector: what is registered there has, as its data, a
function without arguments to call when it is readable. What follows from an event is decided by `Supervisor`.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shoal.comm.control import MAX_WORKERS, ControlPage
from shoal.core.errors import ConfigError
from shoal.core.vitals import look_at
from shoal.core.world import Member
from shoal.elastic.keys import ClientKeys
from shoal.elastic.link import Link
from shoal.elastic.status import AgentStatus, AgentWord, WorkerNote
from shoal.launch.crew import Hand, Terminal, spec_of
from shoal.launch.decisions import Abort, Decision, Send, Start, Tell
from shoal.launch.elsewhere import Elsewhere, LostElsewhere
from shoal.launch.examination import Examination
from shoal.launch.failure import (
    Account,
    Casualty,
    account_of_freeze,
    account_of_hang,
    account_of_standstill,
    silence_s,
)
from shoal.launch.halt import GiveUp, Halt, Relieve
from shoal.launch.hang import HangJudge
from shoal.launch.job import Job, Post
from shoal.launch.memory import OutOfMemory
from shoal.launch.nursery import Nursery
from shoal.launch.output import WorkerLog
from shoal.launch.stillness import LEASES, STILL_S, Sight, stuck
from shoal.launch.supervisor import Stage, Supervisor
from shoal.launch.zygote_messages import Exited, Forked

LOOKS_A_LEASE = 6
_NOTES_OF_ENDED = 256  # in a status: who ended long ago is known everywhere
_AT_LEISURE = ("start", "end")  # before and after training the script does what it likes
_STACK_S = 8.0  # for a stack; then the process is killed without
Report = Callable[[Hand, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Place:
    """Where an agent is. `reach`: where workers on other hosts reach its workers; empty where there are none."""

    name: str
    host: str
    home: bool = True
    reach: str = ""


class Agent:
    """Made before there is a coordinator; `join` says where that is. `on_report` is given what workers say, after the
    supervisor has heard it; `on_tell` whom the run goes on without."""

    def __init__(
        self,
        place: Place,
        job: Job,
        nursery: Nursery,
        control: ControlPage,
        selector: selectors.BaseSelector,
        workers: int | None = None,
    ) -> None:
        self.place, self._job, self._nursery, self._control, self._selector = place, job, nursery, control, selector
        self._workers = job.workers if workers is None else workers  # on this host
        self.supervisor = Supervisor(self._workers, job.elastic if job.survives else None)
        self.crew: dict[int, Hand] = {}
        self.on_report: Report = lambda hand, message: None
        self.on_tell: Callable[[Tell], None] = lambda tell: None
        self.on_lost_elsewhere: Callable[[LostElsewhere], None] = lambda lost: None
        self.on_left_elsewhere: Callable[[Member], None] = lambda member: None
        self.on_links: Callable[[AgentWord], None] = lambda word: None
        self._elsewhere = Elsewhere(place.name)
        self.link: Link | None = None
        self.leaving = False  # said to the coordinator
        self._post: Post | None = None
        self._logs: Path | None = None
        self._terminal: Terminal = (1, 2)
        self._payload_fd: int | None = None
        self._rendezvous = ""
        self._look_s = math.inf if not job.survives else time.monotonic()
        self._said: AgentStatus | None = None
        self._sent: AgentStatus | None = None  # used by the link's thread alone
        self._out_of_memory = OutOfMemory(time.monotonic())
        self._judge = HangJudge(job.elastic.hang_s, job.elastic.hang_steps, job.elastic.start_s)
        self._halt = Halt(max(STILL_S, LEASES * job.elastic.lease_s) if place.reach else STILL_S)
        self._condemned_elsewhere: dict[str, str] = {}  # workers of other hosts, and why
        self._examination = Examination()
        self._condemned: dict[int, float] = {}  # whose stack is being taken, and until when
        selector.register(self._examination, selectors.EVENT_READ, self._on_stacks)

    # -- beginning

    def join(self, address: str, keys: ClientKeys) -> None:
        """The coordinator is at `address`."""
        elastic = self._job.elastic
        beat_s = elastic.lease_s / LOOKS_A_LEASE
        place = self.place
        self._post = Post("", place.name, place.host, address, keys, beat_s, elastic.start_s, place.reach)
        self.link = Link(address, keys, beat_s)
        self.link.amend = self._amend
        self._selector.register(self.link, selectors.EVENT_READ, self._on_word)

    def begin(self, terminal: Terminal, payload_fd: int | None, rendezvous: str = "") -> None:
        """Fork the first workers. `terminal`: where the first one's output goes."""
        self._terminal, self._payload_fd, self._rendezvous = terminal, payload_fd, rendezvous
        self._fork(tuple(self.supervisor.workers))

    def open_logs(self, logs: Path) -> None:
        """Workers' output goes to files in `logs` from now on."""
        self._logs = logs
        for hand in self.crew.values():
            hand.log.open(logs)

    # -- events

    def on_child(self, event: Forked | Exited) -> bool:
        """Something happened to a child of the nursery; returns whether that is a worker."""
        hand = next((hand for hand in self.crew.values() if hand.child == event.key), None)
        if hand is None:
            return False
        if isinstance(event, Forked):
            hand.pid = event.pid
        else:
            self._on_channel(hand)  # its last report may still lie there, and explains its end
            self._on_exit(hand, event)
        self.say()
        return True

    def _on_exit(self, hand: Hand, event: Exited) -> None:
        hand.code, hand.ended, hand.alive = event.code, True, False
        killed = event.code == -signal.SIGKILL and hand.number not in self._condemned
        self._condemned.pop(hand.number, None)
        self._locate(hand)
        self.supervisor.on_exit(
            hand.number, event.code, event.at_s, time.monotonic(), killed and self._out_of_memory.killed(hand.pid)
        )
        state = self.supervisor.workers[hand.number]
        view = self._control.reading(hand.seat).view
        if view > 0 and (state.account is not None or state.done_s is None):
            self._control.break_view(view)  # those who wait for it need not hear it from the coordinator
        hand.cause = state.account.cause if state.account is not None else ""

    def _on_channel(self, hand: Hand) -> None:
        messages, more = hand.messages()
        for message in messages:
            if message.get("type") == "failed" or message.get("put_out"):
                self._locate(hand)
            self.supervisor.on_message(hand.number, message, time.monotonic())
            self.on_report(hand, message)
        if not more and hand.channel.fileno() >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(hand.channel)
            hand.channel.close()

    def _locate(self, hand: Hand) -> None:
        self.supervisor.locate(hand.number, *self._control.progress(hand.seat))

    def _on_output(self, log: WorkerLog) -> None:
        if not log.pump():
            self._selector.unregister(log.fd)
            log.close()

    def _on_word(self) -> None:
        assert self.link is not None
        self.link.drain()
        word = self.link.word
        if not isinstance(word, AgentWord):
            return
        for key, why in word.evict.items():
            hand = next((hand for hand in self.crew.values() if hand.key == key), None)
            if hand is not None and hand.code is None:
                self._evict_frozen(hand, why)
        for member in self._elsewhere.left(word):
            self.on_left_elsewhere(member)
        for lost in self._elsewhere.hear(word):
            self.on_lost_elsewhere(lost)
        self.on_links(word)
        if word.view is not None:
            self.supervisor.elsewhere = sum(1 for one in word.view.members if one.agent != self.place.name)
        self.supervisor.stopping_elsewhere |= word.stopping
        if word.target is not None:
            for decision in self.supervisor.on_target(word.target):
                self.carry_out(decision)

    @property
    def step(self) -> int:
        """How far the workers of this host are."""
        return max((self._control.progress(one.seat)[0] for one in self.crew.values() if one.code is None), default=0)

    # -- looking after workers

    @property
    def deadline_s(self) -> float:
        """When `watch` must be called at the latest."""
        return min(self._look_s, self.supervisor.deadline_s, *self._condemned.values(), math.inf)

    def watch(self) -> list[Decision]:
        """Look at the workers where that is due, and do what follows; returns what is for the owner to do."""
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + self._job.elastic.lease_s / LOOKS_A_LEASE
            self._look(now_s)
        for number in [number for number, until_s in self._condemned.items() if now_s >= until_s]:
            self._execute(number)
        return [one for one in self.supervisor.decide(now_s) if not self.carry_out(one)]

    def _look(self, now_s: float) -> None:
        self._out_of_memory.look(now_s)
        for hand in self.crew.values():
            if hand.ended or not hand.pid:
                continue
            hand.alive = hand.pulse.feel(look_at(hand.pid), now_s)
        self._judge_progress(now_s)
        if self.supervisor.stage == Stage.STOPPING or self.supervisor.stopping_elsewhere:
            self._look_for_still(now_s)
        if self.supervisor.stage == Stage.STOPPING and self.place.home:
            self._judge_stopping(now_s)
        self.say()

    def _busy(self) -> dict[str, Hand]:
        """Those who have something to do, and are not stopped by somebody."""
        busy: dict[str, Hand] = {}
        for hand in self.crew.values():
            reading = self._control.reading(hand.seat)
            at_leisure = reading.view == 0 or reading.phase in _AT_LEISURE or hand.pulse.state in ("T", "t")
            if not hand.ended and hand.pid and not at_leisure:
                busy[hand.key] = hand
        return busy

    def _look_for_still(self, now_s: float) -> None:
        """The run was asked to stop: who of this host does not move towards that?"""
        sights: dict[str, Sight] = {}
        for key, hand in self._busy().items():
            vitals = look_at(hand.pid)
            if vitals is not None:
                sights[key] = Sight(self._control.reading(hand.seat), vitals.computed_s, vitals.state == "D")
        self._halt.look(now_s, sights, self._present.keys(), self._judge.pace)

    @property
    def _present(self) -> dict[str, Hand]:
        """The workers of this host that take part in a view, and are not stopped by somebody."""
        able = (self.crew[number] for number in self.supervisor.able if number in self.crew)
        return {
            hand.key: hand
            for hand in able
            if self._control.reading(hand.seat).view > 0 and hand.pulse.state not in ("T", "t")
        }

    @property
    def stuck(self) -> bool:
        """Whether the run was asked to stop, and no worker of this host moves towards that, by the doing of one here:
        those who only wait for others come to their end with them."""
        return bool(stuck(self._present.keys(), self._halt.still))

    def _judge_stopping(self, now_s: float) -> None:
        """The user waits for the end of the run. Where it has come to a standstill, who is stuck is ended, so that the
        others come to the end of the step and save; where that is of no use, all are."""
        word = self.link.word if self.link is not None else None
        here = self._present
        if not here or self.link is None or not isinstance(word, AgentWord) or word.view is None:
            return
        elsewhere = [member for member in word.view.members if member.agent != self.place.name]
        fresh = self.link.silent_s <= self._job.elastic.lease_s / 2  # else it is not known how they are now
        decision = self._halt.judge(
            [*map(self._member, here.values()), *elsewhere],
            {member.key: word.still[member.key] for member in elsewhere if fresh and member.key in word.still},
            lambda out: self.supervisor.goes_on_without(
                [here[one.key].number for one in out if one.key in here], sum(one.key not in here for one in out)
            ),
        )
        if isinstance(decision, GiveUp):
            self.supervisor.on_stuck(decision.words)
        for member, still in decision.stuck if isinstance(decision, Relieve) else ():
            account = account_of_standstill(still.seconds, still.phase)
            if member.key in here:
                self._evict(here[member.key], account, now_s - still.seconds)
            else:
                self._condemned_elsewhere[member.key] = account.cause

    def _member(self, hand: Hand) -> Member:
        rank, place = self.supervisor.workers[hand.number].rank, self.place
        return Member("worker", rank, place.host, hand.pid, hand.key, place.name)

    def _judge_progress(self, now_s: float) -> None:
        """Put out who has not got on for too long, of those who have something to do."""
        busy = self._busy()
        for hung in self._judge.observe(now_s, {key: self._control.reading(one.seat) for key, one in busy.items()}):
            hand = busy[hung.key]
            if self.supervisor.workers[hand.number].done_s is None:
                self._evict(hand, account_of_hang(hung.seconds, hung.phase, "elastic.hang_s"), now_s - hung.seconds)

    def _evict_frozen(self, hand: Hand, why: str) -> None:
        now_s = time.monotonic()
        vitals = look_at(hand.pid)
        silent_s = silence_s(why)
        since_s = now_s - silent_s if silent_s is not None else hand.pulse.alive_s
        self._evict(hand, account_of_freeze(vitals.state if vitals is not None else "", why), since_s)

    def _evict(self, hand: Hand, account: Account, since_s: float) -> None:
        """A worker is out. Everybody else goes on at once; it is looked at, then killed."""
        now_s = time.monotonic()
        self._locate(hand)
        if hand.number in self._condemned or self.supervisor.stage > Stage.STOPPING:
            return
        if not self.supervisor.on_evicted(hand.number, account, since_s, now_s):
            self._nursery.signal(hand.child, signal.SIGKILL)
            return
        view = self._control.reading(hand.seat).view
        if view > 0:
            self._control.break_view(view)
        hand.ended, hand.alive, hand.cause = True, False, account.cause
        self._condemned[hand.number] = now_s + _STACK_S
        self._examination.begin(hand.number, hand.pid)
        self.say()

    def _on_stacks(self) -> None:
        for number, stack in self._examination.results():
            self.crew[number].stack = stack
            self._execute(number)

    def _execute(self, number: int) -> None:
        if self.crew[number].code is None:
            self._condemned[number] = math.inf
            self._nursery.signal(self.crew[number].child, signal.SIGKILL)

    # -- what is told

    def say(self) -> None:
        """Tell the coordinator how it stands, if that is news."""
        if self.link is None:
            return
        ended = [hand for hand in self.crew.values() if hand.ended]
        old = {hand.number for hand in ended[:-_NOTES_OF_ENDED]}
        status = AgentStatus(
            agent=self.place.name,
            host=self.place.host,
            home=self.place.home,
            capacity=self._workers,
            workers={hand.key: self._note(hand) for hand in self.crew.values() if hand.number not in old},
            leaving=self.leaving,
            stopping=self.place.home and bool(self.supervisor.interrupts),
            condemned=dict(self._condemned_elsewhere),
        )
        if status != self._said or any(note.alive for note in status.workers.values()):
            self._said = status
            self.link.say(status)

    def _amend(self, status: AgentStatus) -> AgentStatus:
        """In the link's thread, which repeats what was said at every beat: that a worker lives, or does not move, is
        said once a look."""
        repeated, self._sent = status is self._sent, status
        return status.repeated() if repeated else status

    def _note(self, hand: Hand) -> WorkerNote:
        state = self.supervisor.workers[hand.number]
        # whoever has taken its seat since has overwritten what is there
        step, phase = (state.step, state.phase) if hand.ended else self._control.progress(hand.seat)
        cause = "".join(letter if letter.isprintable() else " " for letter in hand.cause)[:1000]
        unheard = None if hand.ended else self._control.reading(hand.seat).unheard
        still = None if hand.ended else self._halt.still.get(hand.key)
        return WorkerNote(hand.pid, hand.alive, hand.ended, cause, state.departed, step, phase, unheard, still)

    def casualty(self, number: int, account: Account) -> Casualty:
        """What is known of a worker's end."""
        state, hand = self.supervisor.workers[number], self.crew[number]
        return Casualty(
            rank=state.rank,
            account=account,
            step=state.step,
            phase=state.phase,
            detected_s=state.detected_s,
            stack=hand.stack,
            size=state.size,
            view=state.view,
            failed_s=state.failed_s,
        )

    # -- what is done

    def carry_out(self, decision: Decision) -> bool:
        """Do what was decided, if that is for an agent to do."""
        if isinstance(decision, Abort):
            self._control.abort()
        elif isinstance(decision, Send):
            for number in decision.numbers:
                if number in self.crew and self.crew[number].child:
                    self._nursery.signal(self.crew[number].child, decision.signal)
        elif isinstance(decision, Start):
            self._fork(decision.numbers)
        elif isinstance(decision, Tell):
            self.on_tell(decision)
        else:
            return False
        return True

    def _fork(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            taken = {hand.seat for hand in self.crew.values() if hand.code is None}
            seat = next(seat for seat in range(MAX_WORKERS + 1) if seat not in taken)
            if seat >= MAX_WORKERS:
                raise ConfigError(f"workers={len(taken) + 1}: at most {MAX_WORKERS} are possible on one host")
            self._control.take_seat(seat)
            hand = Hand(number, f"{self.place.name}/{number}", seat, time.monotonic())
            self.crew[number] = hand
            if self._logs is not None:
                hand.log.open(self._logs)
            spec = spec_of(self._job, number, seat, self._post, self._rendezvous, self.place.home)
            hand.fork(self._nursery, spec, self._control.fd, self._terminal, self._payload_fd)
            self._selector.register(hand.channel, selectors.EVENT_READ, partial(self._on_channel, hand))
            self._selector.register(hand.log.fd, selectors.EVENT_READ, partial(self._on_output, hand.log))

    def end(self) -> None:
        """All workers have ended: take in what they wrote last."""
        for hand in self.crew.values():
            hand.log.pump()

    def close(self) -> None:
        """Give everything back."""
        self._examination.close()
        if self.link is not None:
            self.link.close()
        for hand in self.crew.values():
            hand.close()
