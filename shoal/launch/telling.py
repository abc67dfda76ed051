"""What the user is shown of a run's troubles, and what its directory says of them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from shoal.core.events import Event, MemberLost, Warned
from shoal.core.world import Member
from shoal.core.wrapping import for_stream
from shoal.elastic.status import AgentWord
from shoal.launch.agent import Agent
from shoal.launch.decisions import Tell
from shoal.launch.elsewhere import LostElsewhere
from shoal.launch.failure import Account, Casualty, account_of_end, causes, lost, may_go_on, of, render, where
from shoal.launch.job import Job
from shoal.launch.links import Links
from shoal.launch.record import Record
from shoal.launch.zygote_messages import ZygoteRestarted

TOLD_TO_GO = "told to go (SIGTERM)"
LEFT_WITH_ITS_HOST = "told to go by its host"
NOT_WANTED = "told to go, as fewer workers are wanted"


class Teller:
    """Shows what happens to workers as it happens, and enters it in the run directory as soon as there is one."""

    def __init__(self, job: Job, agent: Agent) -> None:
        self._job, self._agent = job, agent
        self._launched_ns = time.time_ns()
        self._lost_early: list[tuple[Casualty, Member]] = []
        self._early: list[Event] = []
        self._served_early: list[tuple[int, float]] = []
        self._links = Links()
        self.records: list[Record] = []  # a script with several fits has several run directories

    @property
    def record(self) -> Record | None:
        return self.records[-1] if self.records else None

    def open(self, run_dir: str) -> bool:
        """The run directory is known; returns whether it is another than before."""
        if self.record is not None and str(self.record.run_dir.path) == run_dir:
            return False
        record = Record(run_dir, self._launched_ns)
        self.records.append(record)
        for event in self._early:
            record.append(event)
        for casualty, member in self._lost_early:
            record.enter(casualty, member)
        for server, at_s in self._served_early:
            record.served_again(server, at_s)
        self._early.clear()
        self._lost_early.clear()
        self._served_early.clear()
        return True

    def note(self, event: Event) -> None:
        """Enter an event in the run directory, now or as soon as there is one."""
        if self.record is not None:
            self.record.append(event)
        else:
            self._early.append(event)

    def warn(self, words: str) -> None:
        """Something went wrong and was mended: show it, and enter it."""
        self.note(Warned(words))
        say(f"shoal: {words}")

    def zygote_again(self, event: ZygoteRestarted) -> None:
        """The process that workers are forked from was lost, and only that."""
        cause = account_of_end(event.code).cause
        self.warn(f"the process that workers are forked from was {cause} and is started again; the workers go on")

    def links(self, word: AgentWord) -> None:
        """Which workers do not hear each other, as the coordinator knows it now."""
        for words in self._links.hear(word):
            self.warn(words)

    def tell(self, tell: Tell) -> None:
        """The run goes on without a worker."""
        state = self._agent.supervisor.workers[tell.number]
        follows = "" if self._agent.supervisor.too_few else _what_follows(tell, self._used_up(tell))
        member = self._member(tell.number)
        if state.account is None:
            why = NOT_WANTED if state.spare else TOLD_TO_GO
            self.note(MemberLost(member.role, member.rank, member.host, member.pid, why))
            who = f"worker {state.rank}{of(state.rank, state.size)}"
            line = f"shoal: {who} on {member.host} has left: {why}"
            say(f"{line}; {follows}" if follows else line)
            return
        casualty = self._agent.casualty(tell.number, state.account)
        self._enter(casualty, member)
        if not state.account.from_within and not self._agent.supervisor.too_few:
            say(lost(casualty, self._job.workers, member.host, follows))
            return
        words = render({tell.number: casualty}, self._job.workers, member.host, self._output())
        self._show(words, follows and f"\nshoal: {follows}")

    def left_elsewhere(self, member: Member) -> None:
        """A worker of another host has gone in good order."""
        self.note(MemberLost(member.role, member.rank, member.host, member.pid, LEFT_WITH_ITS_HOST))
        say(f"shoal: {member} has left: {LEFT_WITH_ITS_HOST}")

    def lost_elsewhere(self, gone: LostElsewhere) -> None:
        """A worker of another host is lost; whoever holds it there replaces it, if that can be done."""
        casualty, member = gone.casualty(self._agent.step), gone.member
        self._enter(casualty, member)
        replaced = "" if self._agent.supervisor.interrupts else "; its host replaces it, if it can"
        say(lost(casualty, self._job.workers, member.host, f"the others go on{replaced}"))

    def lost_server(self, casualty: Casualty, member: Member, follows: str) -> None:
        """A server is lost; `follows` says what comes of it, if anything does."""
        self._enter(casualty, member)
        words = f"shoal: {member} was lost at step {casualty.step}: {casualty.account.message}"
        self._show(words, follows and f"shoal: {follows}")

    def server_again(self, server: int, at_s: float) -> None:
        """What a lost server held is held again."""
        if self.record is not None:
            self.record.served_again(server, at_s)
        else:
            self._served_early.append((server, at_s))

    def _enter(self, casualty: Casualty, member: Member) -> None:
        if self.record is not None:
            self.record.enter(casualty, member)
        else:
            self._lost_early.append((casualty, member))

    def _show(self, words: str, follows: str) -> None:
        say(f"{words}\n{follows}" if follows else words)

    def _used_up(self, tell: Tell) -> str:
        """The budget that is used up, if that is why nobody takes a worker's place."""
        supervisor = self._agent.supervisor
        if tell.replacement is not None or supervisor.succession is None:
            return ""
        terms, spent = supervisor.succession.terms, supervisor.succession
        if supervisor.workers[tell.number].account is None:
            full = spent.preemptions >= terms.max_preemptions
            return f"elastic.max_preemptions={terms.max_preemptions}" if full else ""
        return f"elastic.max_restarts={terms.max_restarts}" if spent.restarts >= terms.max_restarts else ""

    @property
    def mistaken(self) -> bool:
        """Whether the run has failed by a mistake that its message says all about."""
        failures = self._agent.supervisor.failures.values()
        found = [account.kind for account in failures if account.kind != "peer"]
        return bool(found) and all(kind == "user" for kind in found)

    @property
    def may_go_on(self) -> bool:
        """Whether the same command, run again, may get further than this run."""
        failures = self._agent.supervisor.failures
        return may_go_on({number: self._agent.casualty(number, account) for number, account in failures.items()})

    def failure(self) -> str:
        """The run has failed: why, for the terminal. Enters what was not told before."""
        supervisor = self._agent.supervisor
        untold = {
            number: self._agent.casualty(number, account)
            for number, account in supervisor.failures.items()
            # where too few are left, nobody is to blame for having noticed it
            if not supervisor.workers[number].told and not (supervisor.too_few and account.kind == "peer")
        }
        words = []
        blamed = self._links.blame()
        if blamed:  # those who have waited in vain are not the cause
            accused = Account("peer", blamed, blamed, from_within=False)
            untold = {
                number: replace(one, account=accused) if one.account.kind == "peer" else one
                for number, one in untold.items()
            }
        if untold:
            words.append(render(untold, self._job.workers, self._agent.place.host, self._output()))
            if self.record is not None:
                self.record.make_room()
                shown = causes(untold)
                for number in (number for number, casualty in untold.items() if casualty in shown):
                    self.record.enter(untold[number], self._member(number))
        if supervisor.too_few:
            words.append(self._too_few())
        return "\n\n".join(words)

    def _too_few(self) -> str:
        supervisor = self._agent.supervisor
        assert supervisor.succession is not None
        terms, host = supervisor.succession.terms, self._agent.place.host
        lines = []
        for number, state in supervisor.workers.items():
            if state.account is not None and state.account.kind != "peer":
                one = self._agent.casualty(number, state.account)
                lines.append(f"  worker {one.rank} on {host} {where(one)}: {one.account.cause}")
            elif state.departed:
                lines.append(f"  worker {state.rank} on {host}: {TOLD_TO_GO}")
        return (
            f"shoal: the run cannot go on: fewer than elastic.min_workers={terms.min_workers} workers are left, and no "
            f"more may be started (elastic.max_restarts={terms.max_restarts}). Lost were:\n" + "\n".join(lines)
        )

    def _member(self, number: int) -> Member:
        state, hand = self._agent.supervisor.workers[number], self._agent.crew[number]
        return Member("worker", state.rank, self._agent.place.host, hand.pid)

    def _output(self) -> dict[int, str]:
        for hand in self._agent.crew.values():
            hand.log.pump()
        return {number: hand.log.last_words() for number, hand in self._agent.crew.items()}


def _what_follows(tell: Tell, used_up: str) -> str:
    several = "" if tell.remaining == 1 else "s"
    if tell.replacement is not None:
        budget = "({} of {})".format(*tell.replacement)
        if tell.remaining == 0:
            return f"no worker is left: one is started {budget}, and goes on from the last checkpoint"
        return f"goes on with {tell.remaining} worker{several}; a replacement is started {budget}"
    if tell.remaining == 0:
        return ""
    why = f"; it is not replaced: {used_up} is used up" if used_up else ""
    return f"goes on with {tell.remaining} worker{several}{why}"


def say(words: str) -> None:
    """To standard error, as it is for the user and not for a program that reads our output."""
    with contextlib.suppress(OSError):  # a terminal that is gone
        if sys.stderr.isatty() and sys.stdout.isatty():
            sys.stderr.write("\r\x1b[2K")  # a progress line whose process was killed
        sys.stderr.write(for_stream(words, sys.stderr) + "\n")
        sys.stderr.flush()


def short(path: Path) -> str:
    """A path as one would type it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
