"""What a launcher does when: decisions as values, without processes and without a clock.

Events go in with the time at which they happened; `decide` returns what is to be done now, each thing once;
`deadline_s` says until when nothing is to be done unless an event comes. Workers are known by the number under which
they were started: one that takes another's place has a number of its own.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from shoal.core.config import ElasticSettings
from shoal.launch.decisions import Abort, Decision, RequestStop, Send, Start, Tell
from shoal.launch.failure import Account, account_of_end, account_of_freeze, silence_s
from shoal.launch.succession import Succession

SETTLE_S = 0.3  # after a failure: for what the other workers have to say
CAUSE_S = 1.0  # after a failure that must have had another cause: until that is known
TERMINATE_S = 0.5  # from SIGTERM to SIGKILL
FLUSH_S = 3.0  # for the first worker to complete the checkpoint that it is writing
STOP_S = 30.0  # to end a step and save
LEAVE_S = 10.0  # from the end of the script to the end of the process
WAIT_S = 1.0  # from the end of the others' scripts to the end of who still waits to take part
GIVE_UP_S = 5.0  # from SIGKILL to no longer waiting


class Stage(IntEnum):
    """How far the end of a run has come. It only goes on."""

    RUNNING = 0
    STOPPING = 1  # asked to save and end
    SETTLING = 2  # one has failed: the others say what they know of it
    TERMINATING = 3
    KILLING = 4


@dataclass
class WorkerState:
    """One worker. `rank` and `size` are those of its last `view`; before that, as it was started."""

    rank: int
    size: int
    view: int = 0  # the last it took part in
    step: int = 0
    phase: str = "start"
    account: Account | None = None
    failed_s: float = 0.0  # when it failed, or was last seen to live
    detected_s: float = 0.0  # from then until it was known here
    done_s: float | None = None  # when its script had ended well
    code: int | None = None  # once the process has ended
    stuck: bool = False  # done, but its process did not end
    departed: bool = False  # it was told to go, and did
    released: bool = False  # it has ended because it was told that the run is over, for it at least
    judged: bool = False  # what follows from its end has been decided
    survived: bool = False  # the run goes on without it
    spare: bool = False  # there are as many without it as are wanted
    remaining: int = 0  # how many went on without it
    replacement: tuple[int, int] | None = None
    told: bool = False

    @property
    def lost(self) -> bool:
        return self.account is not None or self.departed


class Supervisor:
    """Follows the workers of one host from their fork to the end of the last. `terms`: what is survived; None:
    nothing is. `elsewhere`: workers that take part on other hosts, as far as is known. `stopping_elsewhere`: the run
    was asked to stop at the host of its launcher, so nobody is replaced."""

    def __init__(self, workers: int, terms: ElasticSettings | None = None) -> None:
        self.workers = {number: WorkerState(number, workers) for number in range(workers)}
        self.succession = Succession(terms) if terms is not None else None
        self.elsewhere = 0
        self.stopping_elsewhere = False
        self.run_dir: str | None = None
        self.summary: dict[str, Any] | None = None
        self.interrupts: list[int] = []  # the signals that the user has sent
        self.overdue = False  # asked to stop, but did not in time
        self.stuck = ""  # or would never: who, and where
        self.too_few = False  # workers were lost and could not be replaced: fewer are left than must be
        self.stage = Stage.RUNNING
        self._until_s = math.inf  # the end of this stage
        self._cause_known = False
        self.target = workers

    # -- events

    def locate(self, number: int, step: int, phase: str) -> None:
        """Where a worker was when what is told next happened to it."""
        if self.workers[number].account is None:
            self.workers[number].step, self.workers[number].phase = step, phase

    def on_message(self, number: int, message: Mapping[str, Any], now_s: float) -> None:
        worker, kind = self.workers[number], message.get("type")
        if kind == "started":
            self.run_dir = str(message["run_dir"])
        elif kind == "finished":
            self.summary = dict(message.get("summary") or {})
        elif kind == "view":
            worker.view, worker.rank, worker.size = (int(message[name]) for name in ("number", "rank", "size"))
        elif kind == "departed":
            worker.departed = True
            worker.spare = not message.get("notice", True)
        elif kind == "released":
            worker.released = True
            why = str(message.get("put_out") or "")
            if why and self.stage <= Stage.STOPPING:
                # it may end before we hear from the coordinator that it is out, and then nobody would take its place
                self.on_evicted(number, account_of_freeze("", why), now_s - (silence_s(why) or 0.0), now_s)
        elif kind == "done":
            worker.done_s = now_s
        elif kind == "failed" and worker.account is None:
            worker.account = Account.from_message(message)
            worker.failed_s = float(message.get("at_s", now_s))
            worker.detected_s = max(0.0, now_s - worker.failed_s)

    def on_evicted(self, number: int, account: Account, failed_s: float, now_s: float) -> bool:
        """A worker is out of the run though its process is there; it is about to be killed. False: it has ended in
        some other way already, and that counts."""
        worker = self.workers[number]
        ended = worker.code is not None or (worker.done_s is not None and not worker.released)
        if ended or worker.lost:
            return False
        worker.account, worker.failed_s = account, failed_s
        worker.detected_s = max(0.0, now_s - failed_s)
        return True

    def on_exit(self, number: int, code: int, at_s: float, now_s: float, out_of_memory: bool = False) -> None:
        """A process has ended, at `at_s`. Without a word from it, and not by our hand, that is a failure."""
        worker = self.workers[number]
        worker.code = code
        if worker.lost or worker.done_s is not None or self.stage >= Stage.TERMINATING:
            return
        if self.succession is not None and code == -signal.SIGTERM:
            worker.departed = True
        else:
            worker.account = account_of_end(code, out_of_memory)
            worker.failed_s, worker.detected_s = at_s, max(0.0, now_s - at_s)

    def on_interrupt(self, number: int) -> None:
        """The user has sent SIGINT or SIGTERM. The first asks for an end in good order, if there is
        something to save; the second ends the run at once."""
        self.interrupts.append(number)

    def on_stuck(self, words: str) -> None:
        """The run was asked to stop and never will: `words` say who does not get on. It is ended at once."""
        self.stuck = words

    def on_target(self, target: int) -> list[Decision]:
        """So many workers are wanted here from now on. More than before are started: who was lost and was not replaced
        stays so. Where fewer are wanted, the coordinator asks some to go, and they are not replaced."""
        more, self.target = target - self.target, target
        if more <= 0 or self.finishing or self._stopping or self.stage > Stage.RUNNING:
            return []
        return [Start(tuple(self._enrol() for _ in range(more)))]

    # -- what follows

    def decide(self, now_s: float) -> list[Decision]:
        """What is to be done now."""
        decisions: list[Decision] = []
        if self.interrupts and self.stage == Stage.RUNNING and self.run_dir is not None:
            self._enter(Stage.STOPPING, now_s + STOP_S)
            decisions.append(RequestStop())
        decisions += self._go_on()
        if (self.failures or self.too_few) and self.stage < Stage.SETTLING:
            self._enter(Stage.SETTLING, now_s + CAUSE_S)
            decisions.append(Abort())
        if self.stage == Stage.SETTLING and not self._cause_known:
            self._cause_known = self.too_few or any(one.kind != "peer" for one in self.failures.values())
            self._until_s = min(self._until_s, now_s + SETTLE_S) if self._cause_known else self._until_s
        if self.stage == Stage.SETTLING and now_s >= self._until_s:
            # only the first worker writes checkpoints, and it has been told to end by the abort word
            spared = {self.first} & set(self.alive) if self.run_dir is not None else set()
            self._enter(Stage.TERMINATING, now_s + (FLUSH_S if spared else TERMINATE_S))
            decisions.append(Send(tuple(n for n in self.alive if n not in spared), signal.SIGTERM))
        self.overdue |= self.stage == Stage.STOPPING and (now_s >= self._until_s or bool(self.stuck))
        late = self.stage == Stage.TERMINATING and now_s >= self._until_s
        if self.stage < Stage.KILLING and (self.ended_at_once or self.overdue or late):
            self._enter(Stage.KILLING, now_s + GIVE_UP_S)
            decisions += [Abort(), Send(self.alive, signal.SIGKILL)]
        return decisions + self._push_out(now_s) + self._dismiss(now_s)

    def _enter(self, stage: Stage, until_s: float) -> None:
        self.stage, self._until_s = stage, until_s

    def _enrol(self) -> int:
        number = len(self.workers)
        self.workers[number] = WorkerState(number, self.target)
        return number

    def _go_on(self) -> list[Decision]:
        """What follows from workers that are lost, where that is survived. Others take their place at once; what has
        happened is told when all of it is known."""
        if self.succession is None:
            return []
        started: list[int] = []
        for worker in list(self.workers.values()):
            if worker.lost and not worker.judged and self.stage <= Stage.STOPPING:
                worker.judged = True
                self._judge(worker, self.succession)
                started += [self._enrol()] if worker.replacement is not None else []
                left = len(self.able) + self.elsewhere
                few = left < self.succession.terms.min_workers
                self.too_few |= few and worker.survived and not self.finishing
        decisions: list[Decision] = [Start(tuple(started))] if started else []
        for number, worker in self.workers.items():
            # a frozen one is looked at before it is killed
            known = worker.code is not None or (worker.account is not None and worker.account.kind == "exception")
            if worker.survived and known and not worker.told:
                worker.told = True
                decisions.append(Tell(number, worker.remaining, worker.replacement))
        return decisions

    def _judge(self, worker: WorkerState, succession: Succession) -> None:
        if worker.account is not None:
            begun = any(other.view for other in self.workers.values())
            complete = self.finishing and self.summary is not None
            worker.survived = complete or succession.survives(worker.account, worker.step, begun)
        else:
            worker.survived = True
        worker.spare |= len(self.able) >= self.target
        if len(self.able) + self.elsewhere < succession.terms.min_workers:
            worker.spare = False  # it was asked to go while another one that should have stayed was going, too
        worker.remaining = sum(1 for number in self.able if self.workers[number].view) + self.elsewhere
        wanted = not worker.spare and not self.finishing and not self._stopping
        if worker.survived and wanted and self.stage == Stage.RUNNING:
            worker.replacement = succession.replace(preempted=worker.account is None)

    def _push_out(self, now_s: float) -> list[Decision]:
        """A script that has ended leaves nothing to wait for: its threads and exit handlers get only so
        long."""
        stuck = [number for number in self.alive if self._leave_s(number) <= now_s and not self.workers[number].stuck]
        for number in stuck:
            self.workers[number].stuck = True
        return [Send(tuple(stuck), signal.SIGKILL)] if stuck else []

    def _leave_s(self, number: int) -> float:
        worker = self.workers[number]
        return math.inf if worker.done_s is None or worker.stuck else worker.done_s + LEAVE_S

    def _dismiss(self, now_s: float) -> list[Decision]:
        """When all that took part are done, who still waits to take part would wait in vain."""
        if now_s < self._dismiss_s:
            return []
        waiting = tuple(number for number in self.alive if self.workers[number].done_s is None)
        for number in waiting:
            self.workers[number].done_s = now_s
        return [Send(waiting, signal.SIGTERM)]

    @property
    def _dismiss_s(self) -> float:
        waiting = [self.workers[number] for number in self.alive if self.workers[number].done_s is None]
        ended = [worker.done_s for worker in self.workers.values() if worker.done_s is not None and worker.view]
        if not self.finishing or not waiting or not ended or any(worker.view for worker in waiting):
            return math.inf
        return max(ended) + WAIT_S

    # -- how it stands

    @property
    def deadline_s(self) -> float:
        """When `decide` must be called at the latest; infinity if only an event can change anything."""
        return min([self._until_s, self._dismiss_s, *(self._leave_s(number) for number in self.alive)])

    @property
    def alive(self) -> tuple[int, ...]:
        return tuple(number for number, worker in self.workers.items() if worker.code is None)

    @property
    def able(self) -> tuple[int, ...]:
        """Workers that take part, or may do so yet."""
        return tuple(
            number
            for number, worker in self.workers.items()
            if worker.code is None and worker.done_s is None and not worker.lost
        )

    @property
    def first(self) -> int:
        """The worker that was the first of the newest view; before there is one, the first that was started."""
        firsts = [(worker.view, -number) for number, worker in self.workers.items() if worker.rank == 0]
        return -max(firsts, default=(0, 0))[1]

    @property
    def _stopping(self) -> bool:
        return bool(self.interrupts) or self.stopping_elsewhere

    def goes_on_without(self, numbers: Collection[int], elsewhere: int = 0) -> bool:
        """Whether enough workers would be left to end the step without these, and without so many on other hosts; some
        must be left on the host of the run directory."""
        if self.succession is None:
            return False
        left = len(set(self.able) - set(numbers))
        return left > 0 and left + self.elsewhere - elsewhere >= self.succession.terms.min_workers

    @property
    def finishing(self) -> bool:
        """Whether some worker has come to the end of the script: from now on nobody is replaced."""
        return any(
            worker.done_s is not None and not worker.lost and not worker.released for worker in self.workers.values()
        )

    @property
    def failures(self) -> dict[int, Account]:
        """Why the run fails: the accounts of those without whom it does not go on."""
        return {
            number: worker.account
            for number, worker in self.workers.items()
            if worker.account is not None and (not worker.survived or self.too_few)
        }

    @property
    def ended_at_once(self) -> bool:
        """Whether the user has ended the run without a save."""
        return len(self.interrupts) > 1 or (bool(self.interrupts) and self.run_dir is None)

    def over(self, now_s: float) -> bool:
        """All processes have ended, or did not although they were killed so long ago that nobody waits
        for them."""
        return not self.alive or (self.stage == Stage.KILLING and now_s >= self._until_s)

    @property
    def abandoned(self) -> bool:
        """Whether training had begun and has no end, because everyone who took part was lost, let go or told to go."""
        began = [worker for worker in self.workers.values() if worker.view]
        ended = all(one.lost or one.released or one.survived for one in began)
        return bool(began) and ended and self.summary is None and not self.interrupts

    @property
    def status(self) -> int:
        """The exit status of the command, once the run is over."""
        cut_short = self.ended_at_once or self.overdue
        accounts = list(self.failures.values())
        accounts = [account for account in accounts if account.kind != "peer"] or accounts
        if accounts and not cut_short:
            mistakes_only = all(account.kind in ("user", "disk", "exit") for account in accounts)
            return accounts[0].status if mistakes_only else 1
        if self.too_few and not cut_short:
            return 1
        completed = self.summary is not None and self.summary.get("status") != "interrupted" and not self.alive
        if self.interrupts and (cut_short or not completed):
            return 128 + self.interrupts[0]
        return 0
