"""What a launcher does when: decisions as values, without processes and without a clock.

Events go in with the time at which they happened; `decide` returns what is to be done now, each thing once;
`deadline` says until when nothing is to be done unless an event comes.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from shoal.launch.failure import Account, account_of_end

SETTLE_S = 0.3  # after a failure: for what the other workers have to say
CAUSE_S = 1.0  # after a failure that must have had another cause: until that is known
TERMINATE_S = 0.5  # from SIGTERM to SIGKILL
FLUSH_S = 3.0  # for the first worker to complete the checkpoint that it is writing
STOP_S = 30.0  # to end a step and save
LEAVE_S = 10.0  # from the end of the script to the end of the process
GIVE_UP_S = 5.0  # from SIGKILL to no longer waiting


@dataclass(frozen=True)
class Abort:
    """Set the abort word: every wait of a worker for another ends."""


@dataclass(frozen=True)
class RequestStop:
    """Ask the workers to save and end after their step."""


@dataclass(frozen=True)
class Send:
    """Send a signal to these workers."""

    ranks: tuple[int, ...]
    number: int


Decision = Abort | RequestStop | Send


class Stage(IntEnum):
    """How far the end of a run has come. It only goes on."""

    RUNNING = 0
    STOPPING = 1  # asked to save and end
    SETTLING = 2  # one has failed: the others say what they know of it
    TERMINATING = 3
    KILLING = 4


@dataclass
class WorkerState:
    account: Account | None = None
    detected_s: float = 0.0  # from the failure until it was known here
    done_s: float | None = None  # when its script had ended well
    code: int | None = None  # once the process has ended
    stuck: bool = False  # done, but its process did not end


class Supervisor:
    """Follows one run from the fork of its workers to the end of the last."""

    def __init__(self, workers: int) -> None:
        self.workers = [WorkerState() for _ in range(workers)]
        self.run_dir: str | None = None
        self.summary: dict[str, Any] | None = None
        self.interrupts: list[int] = []  # the signals that the user has sent
        self.overdue = False  # asked to stop, but did not in time
        self.stage = Stage.RUNNING
        self._until_s = math.inf  # the end of this stage
        self._cause_known = False

    def on_message(self, rank: int, message: Mapping[str, Any], now_s: float) -> None:
        worker, kind = self.workers[rank], message.get("type")
        if kind == "started":
            self.run_dir = str(message["run_dir"])
        elif kind == "finished":
            self.summary = dict(message.get("summary") or {})
        elif kind == "done":
            worker.done_s = now_s
        elif kind == "failed" and worker.account is None:
            worker.account = Account.from_message(message)
            worker.detected_s = max(0.0, now_s - float(message.get("at_s", now_s)))

    def on_exit(self, rank: int, code: int, at_s: float, now_s: float) -> None:
        """A process has ended, at `at_s`. Without a word from it, and not by our hand, that is a failure."""
        worker = self.workers[rank]
        worker.code = code
        if worker.account is None and worker.done_s is None and self.stage < Stage.TERMINATING:
            worker.account = account_of_end(code)
            worker.detected_s = max(0.0, now_s - at_s)

    def on_interrupt(self, number: int) -> None:
        """The user has sent SIGINT or SIGTERM. The first asks for an end in good order, if there is
        something to save; the second ends the run at once."""
        self.interrupts.append(number)

    def decide(self, now_s: float) -> list[Decision]:
        """What is to be done now."""
        decisions: list[Decision] = []
        if self.interrupts and self.stage == Stage.RUNNING and self.run_dir is not None:
            self._enter(Stage.STOPPING, now_s + STOP_S)
            decisions.append(RequestStop())
        if self.failures and self.stage < Stage.SETTLING:
            self._enter(Stage.SETTLING, now_s + CAUSE_S)
            decisions.append(Abort())
        if self.stage == Stage.SETTLING and not self._cause_known:
            self._cause_known = any(account.kind != "peer" for account in self.failures.values())
            self._until_s = min(self._until_s, now_s + SETTLE_S) if self._cause_known else self._until_s
        if self.stage == Stage.SETTLING and now_s >= self._until_s:
            # only the first worker writes checkpoints, and it has been told to end by the abort word
            spared = self.alive[:1] if self.run_dir is not None and 0 in self.alive else ()
            self._enter(Stage.TERMINATING, now_s + (FLUSH_S if spared else TERMINATE_S))
            decisions.append(Send(self.alive[len(spared) :], signal.SIGTERM))
        self.overdue |= self.stage == Stage.STOPPING and now_s >= self._until_s
        late = self.stage == Stage.TERMINATING and now_s >= self._until_s
        if self.stage < Stage.KILLING and (self.ended_at_once or self.overdue or late):
            self._enter(Stage.KILLING, now_s + GIVE_UP_S)
            decisions += [Abort(), Send(self.alive, signal.SIGKILL)]
        return decisions + self._push_out(now_s)

    def _enter(self, stage: Stage, until_s: float) -> None:
        self.stage, self._until_s = stage, until_s

    def _push_out(self, now_s: float) -> list[Decision]:
        """A script that has ended leaves nothing to wait for: its threads and exit handlers get only so
        long."""
        stuck = [rank for rank in self.alive if self._leave_s(rank) <= now_s and not self.workers[rank].stuck]
        for rank in stuck:
            self.workers[rank].stuck = True
        return [Send(tuple(stuck), signal.SIGKILL)] if stuck else []

    def _leave_s(self, rank: int) -> float:
        worker = self.workers[rank]
        return math.inf if worker.done_s is None or worker.stuck else worker.done_s + LEAVE_S

    @property
    def deadline_s(self) -> float:
        """When `decide` must be called at the latest; infinity if only an event can change anything."""
        return min([self._until_s, *(self._leave_s(rank) for rank in self.alive)])

    @property
    def alive(self) -> tuple[int, ...]:
        return tuple(rank for rank, worker in enumerate(self.workers) if worker.code is None)

    @property
    def failures(self) -> dict[int, Account]:
        return {rank: worker.account for rank, worker in enumerate(self.workers) if worker.account is not None}

    @property
    def ended_at_once(self) -> bool:
        """Whether the user has ended the run without a save."""
        return len(self.interrupts) > 1 or (bool(self.interrupts) and self.run_dir is None)

    def over(self, now_s: float) -> bool:
        """All processes have ended, or did not although they were killed so long ago that nobody waits
        for them."""
        return not self.alive or (self.stage == Stage.KILLING and now_s >= self._until_s)

    @property
    def status(self) -> int:
        """The exit status of the command, once the run is over."""
        cut_short = self.ended_at_once or self.overdue
        accounts = list(self.failures.values())
        accounts = [account for account in accounts if account.kind != "peer"] or accounts
        if accounts and not cut_short:
            mistakes_only = all(account.kind in ("user", "exit") for account in accounts)
            return accounts[0].status if mistakes_only else 1
        completed = self.summary is not None and self.summary.get("status") != "interrupted" and not self.alive
        if self.interrupts and (cut_short or not completed):
            return 128 + self.interrupts[0]
        return 0
