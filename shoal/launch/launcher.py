"""The launcher: starts the workers of a job, watches them, and ends them. It imports no torch itself.

One thread waits for all of it at once: for what workers report, for their output, for their ends, for
Ctrl-C. What follows from an event is decided by `Supervisor`; here it is carried out.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import sys
import time
from functools import partial
from pathlib import Path

from shoal.comm.control import MAX_WORKERS, ControlPage
from shoal.comm.rendezvous import make_rendezvous, remove_rendezvous
from shoal.core.errors import ConfigError, UserError
from shoal.launch.crew import Hand
from shoal.launch.failure import Casualty, causes, render
from shoal.launch.interrupts import Interrupts
from shoal.launch.job import Job, Outcome
from shoal.launch.nursery import Exited, Forked, Nursery, Ready, ZygoteLost
from shoal.launch.output import Outlet
from shoal.launch.parcel import pack
from shoal.launch.record import Record
from shoal.launch.supervisor import STOP_S, Abort, Decision, RequestStop, Send, Stage, Supervisor

READY_S = 180.0  # to import torch, from a cold disk if need be


class Launcher:
    """Runs one job. A `nursery` that was started early, while other things were prepared, saves its
    start-up time; it is closed with the run, and must have been started in the thread that calls `run`."""

    def __init__(self, job: Job, nursery: Nursery | None = None) -> None:
        if job.workers > MAX_WORKERS:
            raise ConfigError(f"workers={job.workers}: at most {MAX_WORKERS} are possible on one host")
        self._job = job
        self._nursery = nursery

    def run(self) -> Outcome:
        """Run the job to its end, and return when all its processes are gone. What went wrong has been
        shown on standard error. SIGINT and SIGTERM are taken in meanwhile, if this is the main thread."""
        with contextlib.ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            nursery = self._nursery if self._nursery is not None else Nursery()
            stack.callback(nursery.close)
            control = ControlPage()
            stack.callback(control.close)
            rendezvous = make_rendezvous()
            stack.callback(remove_rendezvous, rendezvous)
            watch = _Watch(self._job, nursery, control, rendezvous, interrupts)
            stack.callback(watch.close)
            watch.until_over()
            nursery.close()
            return watch.outcome()


class _Watch:
    """One run of a launcher."""

    def __init__(
        self, job: Job, nursery: Nursery, control: ControlPage, rendezvous: str, interrupts: Interrupts
    ) -> None:
        self._job, self._nursery, self._control = job, nursery, control
        self._rendezvous, self._interrupts = rendezvous, interrupts
        self._supervisor = Supervisor(job.workers)
        self._crew = [Hand(rank, job.relay) for rank in range(job.workers)]
        self._record: Record | None = None
        self._resume_dir: Path | None = None
        self._payload: int | None = None
        self._forked = False
        self._lost: str | None = None  # why there is no zygote any more
        self._launched_ns = time.time_ns()
        self._ready_until_s = time.monotonic() + READY_S
        self._selector = selectors.DefaultSelector()
        self._selector.register(nursery, selectors.EVENT_READ, self._on_nursery)
        self._selector.register(interrupts, selectors.EVENT_READ, self._on_interrupt)

    def until_over(self) -> None:
        """Start the workers as soon as there is a zygote, and watch them until the last has ended."""
        self._payload = _packed(self._job)
        if self._nursery.ready:
            self._fork()
        while not self._over():
            for decision in self._supervisor.decide(time.monotonic()):
                self._carry_out(decision)
            deadline_s = self._supervisor.deadline_s if self._forked else self._ready_until_s
            wait_s = None if deadline_s == math.inf else max(0.0, deadline_s - time.monotonic())
            for key, _ in self._selector.select(0.0 if self._over() else wait_s):
                key.data()
        for hand in self._crew:  # what was written just before the end
            for outlet in hand.outlets:
                outlet.pump()

    def _over(self) -> bool:
        now_s = time.monotonic()
        if not self._forked and now_s >= self._ready_until_s:
            self._lost = f"the process that starts workers was not ready within {READY_S:.0f} s"
        unborn = not self._forked and self._supervisor.stage == Stage.KILLING
        return self._lost is not None or unborn or self._supervisor.over(now_s)

    # -- events

    def _on_nursery(self) -> None:
        for event in self._nursery.events():
            if isinstance(event, Ready):
                self._fork()
            elif isinstance(event, ZygoteLost):
                self._lost = f"the process that starts workers has ended (status {event.code})"
            else:
                hand = next(hand for hand in self._crew if hand.key == event.key)
                if isinstance(event, Forked):
                    hand.pid = event.pid
                elif isinstance(event, Exited):
                    self._on_channel(hand)  # its last report may still lie there, and explains its end
                    self._supervisor.on_exit(hand.rank, event.code, event.at_s, time.monotonic())

    def _fork(self) -> None:
        if self._supervisor.interrupts:
            return
        self._forked = True
        for hand in self._crew:
            hand.fork(self._nursery, self._job, self._rendezvous, self._control.fd, self._payload)
            self._selector.register(hand.channel, selectors.EVENT_READ, partial(self._on_channel, hand))
            for outlet in hand.outlets:
                self._selector.register(outlet.fd, selectors.EVENT_READ, partial(self._on_output, outlet))

    def _on_channel(self, hand: Hand) -> None:
        messages, more = hand.messages()
        for message in messages:
            self._supervisor.on_message(hand.rank, message, time.monotonic())
            if message.get("type") == "started":
                self._resume_dir = Path(message.get("resume_dir", message["run_dir"]))
                self._open_logs(str(message["run_dir"]))
        if not more:
            with contextlib.suppress(KeyError):
                self._selector.unregister(hand.channel)

    def _open_logs(self, run_dir: str) -> None:
        if self._record is not None and str(self._record.run_dir.path) == run_dir:
            return
        self._record = Record(run_dir, self._launched_ns)
        for hand in self._crew:
            if hand.log is not None:
                hand.log.open(self._record.run_dir.logs)

    def _on_output(self, outlet: Outlet) -> None:
        if not outlet.pump():
            self._selector.unregister(outlet.fd)

    def _on_interrupt(self) -> None:
        for number in self._interrupts.take():
            self._supervisor.on_interrupt(number)

    # -- what follows

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Abort):
            self._control.abort()
        elif isinstance(decision, RequestStop):
            self._control.request_stop()
            _say("shoal: stopping after this step: saving … (Ctrl-C again to end at once)")
        elif isinstance(decision, Send):
            for rank in decision.ranks:
                if self._crew[rank].key:
                    self._nursery.signal(self._crew[rank].key, decision.number)

    def outcome(self) -> Outcome:
        """How it ended; shows it to the user, and enters a failure in the run directory."""
        supervisor = self._supervisor
        record = self._record
        status, words = supervisor.status, ""
        if self._lost is not None and not supervisor.ended_at_once:
            status, words = 1, f"shoal: {self._lost}, and the workers with it"
        elif supervisor.ended_at_once or supervisor.overdue:
            late = f" (it did not stop within {STOP_S:.0f} s)" if supervisor.overdue else ""
            words = f"shoal: ended at once, without saving{late}"
        elif supervisor.failures:
            words = self._tell_failure()
        mistake = status == 2 and words.startswith("shoal: error")
        if words and record is not None and not mistake:
            place = _short(self._resume_dir or record.run_dir.path)
            words += (
                f"\n\nshoal: the same command with --run-dir {place} goes on from the last checkpoint (if there is one)"
            )
        # a notebook raises what it is given, and need not show it twice
        if words and not self._job.relay:
            _say(words)
        run_dir = str(record.run_dir.path) if record is not None else None
        summary = supervisor.summary or (record.summary() if record is not None else None)
        return Outcome(status, summary, run_dir, words or None)

    def _tell_failure(self) -> str:
        casualties = {}
        for rank, account in self._supervisor.failures.items():
            detected_s = self._supervisor.workers[rank].detected_s
            casualties[rank] = Casualty(rank, account, *self._control.progress(rank), detected_s)
        host = socket.gethostname()
        output = {hand.rank: hand.log.last_words() for hand in self._crew if hand.log is not None}
        words = render(casualties, self._job.workers, host, output)
        if self._record is not None:
            members = {hand.rank: hand.member(host) for hand in self._crew}
            problem = self._record.failed(causes(casualties), members)
            words += f"\n\nshoal: this could not be noted in the run directory: {problem}" if problem else ""
        return words

    def close(self) -> None:
        for hand in self._crew:
            hand.close()
        self._selector.close()
        if self._payload is not None:
            os.close(self._payload)


def _packed(job: Job) -> int | None:
    """The payload as a parcel: from the notebook, so no module of it need be importable in a worker."""
    if job.payload is None:
        return None
    import cloudpickle

    try:
        return pack(cloudpickle.dumps(job.payload))
    except Exception as error:
        raise UserError(f"the program cannot be sent to the workers: {type(error).__name__}: {error}") from error


def _say(words: str) -> None:
    """To standard error, as it is for the user and not for a program that reads our output."""
    with contextlib.suppress(OSError):  # a terminal that is gone
        if sys.stderr.isatty() and sys.stdout.isatty():
            sys.stderr.write("\r\x1b[2K")  # a progress line whose process was killed
        sys.stderr.write(words + "\n")
        sys.stderr.flush()


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
