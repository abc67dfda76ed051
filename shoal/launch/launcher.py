"""The launcher: runs one job, with a coordinator and workers of its own. It imports no torch itself.

One thread waits for all of it at once: for what workers report, for their output, for their ends, for
Ctrl-C. What follows from an event is decided by `Supervisor`; `Agent` and the launcher carry it out.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.comm.control import MAX_WORKERS, ControlPage
from shoal.comm.rendezvous import make_rendezvous, remove_rendezvous
from shoal.core.errors import ConfigError, UserError
from shoal.core.events import Warned
from shoal.launch.agent import Agent, Place
from shoal.launch.coordination import Coordination
from shoal.launch.crew import Hand, Terminal
from shoal.launch.decisions import RequestStop
from shoal.launch.descriptors import provide_descriptors
from shoal.launch.evaluating import Evaluators
from shoal.launch.interrupts import Interrupts
from shoal.launch.job import Job, Outcome
from shoal.launch.nursery import Nursery, ReaperLost
from shoal.launch.output import Relay
from shoal.launch.parcel import pack
from shoal.launch.rundir import RunDir
from shoal.launch.scaling import RESIZE, key_file
from shoal.launch.servers import WANTED, Servers
from shoal.launch.session import WARNING
from shoal.launch.supervisor import STOP_S, Stage
from shoal.launch.telling import Teller, say, short
from shoal.launch.zygote_messages import Exited, Forked, Ready, ZygoteRestarted

READY_S = 180.0  # to import torch, from a cold disk if need be
HOME = "home"  # the launcher's name as an agent
_QUIET_S = 1.0  # for an evaluator, before the user is told what is waited for


class Launcher:
    """Runs one job. A `nursery` that was started early, while other things were prepared, saves its
    start-up time; it is closed with the run, and must have been started in the thread that calls `run`."""

    def __init__(self, job: Job, nursery: Nursery | None = None) -> None:
        if job.workers > MAX_WORKERS:
            raise ConfigError(f"workers={job.workers}: at most {MAX_WORKERS} are possible on one host")
        provide_descriptors(job.workers)
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
            watch = _Watch(self._job, nursery, control, interrupts)
            stack.callback(watch.close)
            watch.until_over()
            nursery.close()
            return watch.outcome()


class _Watch:
    """One run of a launcher."""

    def __init__(self, job: Job, nursery: Nursery, control: ControlPage, interrupts: Interrupts) -> None:
        self._job, self._nursery, self._control, self._interrupts = job, nursery, control, interrupts
        self._selector = selectors.DefaultSelector()
        reach = job.listen.address if job.listen is not None else ""
        self._agent = Agent(Place(HOME, socket.gethostname(), reach=reach), job, nursery, control, self._selector)
        self._supervisor = self._agent.supervisor
        self._teller = Teller(job, self._agent)
        self._agent.on_report, self._agent.on_tell = self._on_report, self._teller.tell
        self._agent.on_lost_elsewhere = self._teller.lost_elsewhere
        self._agent.on_left_elsewhere = self._teller.left_elsewhere
        self._agent.on_links = self._teller.links
        self._coordination = Coordination(job, nursery, self._agent, self._selector) if job.survives else None
        self._servers: Servers | None = None
        if self._coordination is not None:
            self._coordination.on_ready, self._coordination.on_lost = self._on_ready, self._lose
            self._coordination.on_again = self._on_coordinator_again
            self._servers = Servers(job, nursery, self._selector, self._coordination, self._teller, self._step)
            self._servers.on_lost = self._lose
        self._evaluators = Evaluators(job, nursery, control, self._selector)
        self._rendezvous = "" if job.survives else make_rendezvous()
        self._relays = [Relay("stdout"), Relay("stderr")] if job.relay else []
        self._resume_dir: Path | None = None
        self._payload: int | None = None
        self._forked = False
        self._lost: str | None = None  # what the run cannot do without
        self._ready_until_s = time.monotonic() + READY_S
        self._selector.register(nursery, selectors.EVENT_READ, self._on_nursery)
        self._selector.register(interrupts, selectors.EVENT_READ, self._on_interrupt)
        for relay in self._relays:
            self._selector.register(relay.fd, selectors.EVENT_READ, relay.pump)

    def until_over(self) -> None:
        """Start the workers as soon as they can be, and watch them until the last has ended."""
        self._payload = _packed(self._job)
        if self._nursery.ready:
            self._begin()
        while True:
            for decision in self._agent.watch():  # the end of the last worker may lead to another one's start
                assert isinstance(decision, RequestStop)
                self._control.request_stop()
                say("shoal: stopping after this step: saving … (Ctrl-C again to end at once)")
            if self._over():
                break
            if self._coordination is not None:
                self._coordination.remind()
            if self._servers is not None:
                self._servers.watch()
            for key, _ in self._selector.select(self._patience_s()):
                key.data()
        self._agent.end()
        for relay in self._relays:
            relay.pump()
        if self._servers is not None:
            self._servers.close()
        if self._coordination is not None:
            self._coordination.end()
        self._wait_for_evaluators()

    def _wait_for_evaluators(self) -> None:
        """All workers have ended. If they ended well, the last checkpoint is evaluated; Ctrl-C ends that."""
        self._evaluators.run_over()
        said_s = time.monotonic() + _QUIET_S
        supervisor = self._supervisor
        while not (self._lost or supervisor.interrupts or supervisor.failures or supervisor.too_few):
            now_s = time.monotonic()
            if self._evaluators.over(now_s):
                break
            if now_s >= said_s:
                said_s = math.inf
                say("shoal: the evaluator looks at the last checkpoint … (Ctrl-C to leave that out)")
            deadline_s = min(self._evaluators.deadline_s, said_s)
            for key, _ in self._selector.select(max(0.0, deadline_s - now_s)):
                key.data()

    def _patience_s(self) -> float | None:
        deadline_s = self._agent.deadline_s
        if not self._forked:
            deadline_s = min(deadline_s, self._ready_until_s)
        if self._coordination is not None and self._coordination.deadline_s is not None:
            deadline_s = min(deadline_s, self._coordination.deadline_s)
        if self._servers is not None:
            deadline_s = min(deadline_s, self._servers.deadline_s)
        return None if deadline_s == math.inf else max(0.0, deadline_s - time.monotonic())

    def _over(self) -> bool:
        now_s = time.monotonic()
        if not self._forked and now_s >= self._ready_until_s:
            self._lose(f"the process that starts workers was not ready within {READY_S:.0f} s")
        unborn = not self._forked and self._supervisor.stage == Stage.KILLING
        return self._lost is not None or unborn or self._supervisor.over(now_s)

    # -- events

    def _on_nursery(self) -> None:
        for event in self._nursery.events():
            if isinstance(event, Ready):
                self._begin()
            elif isinstance(event, ReaperLost):
                self._lose(f"the process that starts workers has ended (status {event.code})")
            elif isinstance(event, ZygoteRestarted):
                self._teller.zygote_again(event)
            else:
                self._on_child(event)

    def _on_child(self, event: Forked | Exited) -> None:
        if self._agent.on_child(event) or self._evaluators.on_child(event):
            return
        if self._coordination is not None and self._servers is not None and not self._servers.on_child(event):
            self._coordination.on_child(event)

    def _begin(self) -> None:
        if self._supervisor.interrupts:
            return
        if self._coordination is not None:
            self._coordination.start()
        else:
            self._fork()

    def _on_ready(self) -> None:
        """There is a coordinator. Other hosts may join from now on: the key to the run lies in its directory."""
        assert self._coordination is not None
        if self._job.listen is not None and self._job.run_dir is not None:
            run_dir = RunDir(Path(self._job.run_dir))
            with run_dir.locked():  # it is not another run's
                run_dir.logs.mkdir(parents=True, exist_ok=True)
                self._coordination.enter(run_dir)
            key = short(key_file(run_dir.path))
            say(f"shoal: other hosts join with this line and a copy of {key}:")
            say(f"  shoal join {self._coordination.place} --key-file {key}")
        self._fork()

    def _fork(self) -> None:
        if self._supervisor.interrupts:
            return
        self._forked = True
        # where a summary is asked for on standard output, nothing else is there
        terminal: Terminal = (2, 2) if self._job.json_output and self._job.mode == "train" else (1, 2)
        if self._relays:
            terminal = (self._relays[0].theirs, self._relays[1].theirs)
        self._agent.begin(terminal, self._payload, self._rendezvous)

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why

    def _on_coordinator_again(self, words: str) -> None:
        self._teller.note(Warned(words))
        say(f"shoal: {words}; training goes on")

    def _on_report(self, hand: Hand, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "started":
            self._resume_dir = Path(message.get("resume_dir", message["run_dir"]))
            if self._teller.open(str(message["run_dir"])):
                run_dir = RunDir(Path(message["run_dir"]))
                self._agent.open_logs(run_dir.logs)
                if self._coordination is not None:
                    self._coordination.enter(run_dir)
            if self._servers is not None:
                self._servers.enter(int(message.get("fit", 0)), RunDir(Path(message["run_dir"])))
            self._evaluators.enter(message, self._payload)
        elif kind == WANTED and self._servers is not None:
            self._servers.ask(message)
        elif kind == RESIZE and self._coordination is not None:
            self._coordination.scale(int(message["workers"]))
            say(f"shoal: {message['reason']}")
        elif kind == WARNING:
            self._teller.warn(str(message["message"]))
        elif kind == "finished" and "fit" in message:
            self._evaluators.run_over(int(message["fit"]))
        elif kind == "resumed" and self._teller.record is not None:
            self._teller.record.resumed(int(message["view"]), float(message["at_s"]))

    def _step(self) -> int:
        return self._agent.step

    def _on_interrupt(self) -> None:
        for number in self._interrupts.take():
            self._supervisor.on_interrupt(number)

    # -- the end

    def outcome(self) -> Outcome:
        """How it ended; shows it to the user, and enters it in the run directory."""
        supervisor, record = self._supervisor, self._teller.record
        status, words = supervisor.status, ""
        failed = False
        if self._lost is not None and not supervisor.ended_at_once:
            status, words = 1, f"shoal: {self._lost}, and the workers with it"
            failed = supervisor.summary is None
        elif supervisor.ended_at_once or supervisor.overdue:
            late = f" ({supervisor.stuck or f'it did not stop within {STOP_S:.0f} s'})" if supervisor.overdue else ""
            words = f"shoal: ended at once, without saving{late}"
        elif supervisor.failures or supervisor.too_few:
            words, failed = self._teller.failure(), True
        elif supervisor.abandoned:
            status, failed = 1, True
            words = "shoal: no worker is left on this host, and the run directory with it: the run is over"
        summary = self._conclude(failed)
        if failed and record is not None and record.problem:
            words += f"\n\nshoal: this could not be noted in the run directory: {record.problem}"
        if failed and record is not None and record.kept is not None and not self._teller.mistaken:
            file = short(record.run_dir.summary_file)
            words += f"\n\nshoal: {file} is still that of the run before ({record.kept}), until this one has a result"
        if words and record is not None and (supervisor.too_few or self._teller.may_go_on):
            place = short(self._resume_dir or record.run_dir.path)
            words += (
                f"\n\nshoal: the same command with --run-dir {place} goes on from the last checkpoint (if there is one)"
            )
        # a notebook raises what it is given, and need not show it twice
        if words and not self._job.relay:
            say(words)
        run_dir = str(record.run_dir.path) if record is not None else None
        return Outcome(status, summary, run_dir, words or None)

    def _conclude(self, failed: bool) -> dict[str, Any] | None:
        """Enter the faults in all summaries, and return that of the run."""
        told, summary = self._supervisor.summary, None
        for record in self._teller.records:
            last = record is self._teller.record
            summary = record.conclude(failed and last, self._job.workers)
        if told is None or failed:
            return summary if summary is not None else told
        newest = self._teller.record
        lost = newest.faults() if newest is not None else []
        return {**told, "faults": [*told.get("faults", ()), *lost]} if lost else told

    def close(self) -> None:
        self._agent.close()
        self._evaluators.close()
        if self._servers is not None:
            self._servers.close()
        if self._coordination is not None:
            self._coordination.close()
        for relay in self._relays:
            relay.close()
        self._selector.close()
        if self._payload is not None:
            os.close(self._payload)
        if self._rendezvous:
            remove_rendezvous(self._rendezvous)
        for record in self._teller.records:
            record.make_room()


def _packed(job: Job) -> int | None:
    """The payload as a parcel: from the notebook, so no module of it need be importable in a worker."""
    if job.payload is None:
        return None
    import cloudpickle

    try:
        return pack(cloudpickle.dumps(job.payload))
    except Exception as error:
        raise UserError(f"the program cannot be sent to the workers: {type(error).__name__}: {error}") from error
