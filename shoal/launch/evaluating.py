"""How the launcher looks after evaluators: a process for each fit() of the script whose settings ask for one.

An evaluator runs the script as a worker does, but follows the checkpoints of the run instead of training. Nobody waits
for it while the run goes on, and its end is no fault of the run: killed, it is started again.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.comm.control import ControlPage
from shoal.core.errors import ShoalError
from shoal.core.events import Event, MemberJoined, Warned
from shoal.launch.companion import Companion
from shoal.launch.crew import ENTRY, spec_of
from shoal.launch.failure import account_of_end
from shoal.launch.job import Job, WorkerSpec
from shoal.launch.nursery import Nursery
from shoal.launch.parcel import pack
from shoal.launch.rundir import RunDir
from shoal.launch.telling import say
from shoal.launch.zygote_messages import Exited, Forked

RESTARTS = 10  # of each evaluator


class EvaluatorChild(Companion):
    """The evaluator of one fit(). It ends by itself when the run is over and the last checkpoint evaluated."""

    name = "evaluator"
    limit = RESTARTS + 1

    def __init__(
        self, nursery: Nursery, spec: WorkerSpec, patience_s: float, control_fd: int, payload_fd: int | None
    ) -> None:
        super().__init__(nursery)
        self.run_dir = RunDir(Path(spec.follows[-1]))
        self.problem = ""  # why it has ended, where it said so itself
        self._spec, self._control_fd, self._payload_fd = spec, control_fd, payload_fd
        self.patience_s = patience_s
        self._waited_since_s = math.inf  # from the end of the run, or from its last sign of life after that
        self.open_log(self.run_dir.logs)

    def fork(self, nursery: Nursery, channel_fd: int, log_fd: int) -> int:
        spec_fd = pack(self._spec.to_json())
        try:
            # the terminal is not for it
            fds = [self._control_fd, channel_fd, spec_fd, log_fd, log_fd, log_fd]
            return nursery.fork(ENTRY, fds if self._payload_fd is None else [*fds, self._payload_fd])
        finally:
            os.close(spec_fd)

    def start(self) -> None:
        super().start()
        if self._waited_since_s < math.inf:
            self._end_channel()

    def run_over(self, now_s: float) -> None:
        """The run is over: it need not look for more checkpoints than there are. May be said twice."""
        if self._waited_since_s == math.inf:
            self._waited_since_s = now_s
            self._end_channel()

    def _end_channel(self) -> None:
        if self.channel is not None:
            with contextlib.suppress(OSError):
                self.channel.shutdown(socket.SHUT_WR)

    def hear(self, now_s: float) -> None:
        """Take in what it says."""
        for message in self.messages():
            if self._waited_since_s < math.inf:
                self._waited_since_s = now_s
            if message["type"] == "failed":
                self.problem = str(message["cause"])

    @property
    def deadline_s(self) -> float:
        """Until when it is waited for."""
        return self._waited_since_s + self.patience_s


class Evaluators:
    """All evaluators of a script; there may be several for a moment, when one fit() follows another. For the launcher's
    thread; `selector` is its own."""

    def __init__(self, job: Job, nursery: Nursery, control: ControlPage, selector: selectors.BaseSelector) -> None:
        self._job, self._nursery, self._control, self._selector = job, nursery, control, selector
        self._run_dirs: dict[int, str] = {}
        self._children: dict[int, EvaluatorChild] = {}  # by number of fit()

    def enter(self, message: Mapping[str, Any], payload_fd: int | None) -> None:
        """A fit() has started, as `message` says: start its evaluator, if it wants one and has none."""
        fit, run_dir = int(message.get("fit", 0)), str(message["run_dir"])
        settings = message.get("evaluator")
        self._run_dirs[fit] = run_dir
        if settings is None or fit in self._children:
            return
        spec = replace(
            spec_of(self._job, 0, 0, None, "", role="evaluator"),
            threads=1,
            follows=tuple(self._run_dirs.get(number, run_dir) for number in range(fit + 1)),
        )
        patience_s = float(settings["patience_s"])
        child = EvaluatorChild(self._nursery, spec, patience_s, self._control.fd, payload_fd)
        self._children[fit] = child
        self._start(child)

    def _start(self, child: EvaluatorChild) -> None:
        child.start()
        assert child.channel is not None
        assert child.log is not None
        self._selector.register(child.channel, selectors.EVENT_READ, partial(self._on_channel, child))
        self._selector.register(child.log.fd, selectors.EVENT_READ, partial(self._on_output, child))

    def _on_channel(self, child: EvaluatorChild) -> None:
        child.hear(time.monotonic())

    def _on_output(self, child: EvaluatorChild) -> None:
        if child.log is not None and not child.log.pump():
            self._selector.unregister(child.log.fd)

    def on_child(self, event: Forked | Exited) -> bool:
        """Something happened to a child of the nursery; returns whether that is an evaluator."""
        child = next((child for child in self._children.values() if child.child == event.key), None)
        if child is None:
            return False
        if isinstance(event, Forked):
            child.pid = event.pid
            self._note(child, MemberJoined("evaluator", 0, socket.gethostname(), event.pid))
        else:
            self._on_exit(child, event.code)
        return True

    def _on_exit(self, child: EvaluatorChild, code: int) -> None:
        self._on_channel(child)  # its last words may still lie there, and explain its end
        for fd in (child.channel, child.log and child.log.fd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(fd)  # type: ignore[arg-type]
        again = child.on_exit()
        child.close()
        if code == 0:
            return
        if child.problem:  # it would come to that again
            self._warn(child, f"the evaluator has failed, and nothing is evaluated any more: {child.problem}")
        elif again:
            restart = f"is started again ({child.starts} of {child.limit - 1})"
            self._warn(child, f"the evaluator was {account_of_end(code).cause} and {restart}")
            self._start(child)
        else:
            times = f"it has been {child.limit - 1} times"
            self._warn(child, f"the evaluator was {account_of_end(code).cause} and is not started again: {times}")

    def run_over(self, fit: int | None = None) -> None:
        """A fit() is over; None: all are, the workers have ended."""
        for number, child in self._children.items():
            if fit is None or number == fit:
                child.run_over(time.monotonic())

    @property
    def deadline_s(self) -> float:
        """When `over` must be asked at the latest."""
        return min((child.deadline_s for child in self._children.values() if child.child), default=math.inf)

    def over(self, now_s: float) -> bool:
        """Whether nobody is left to wait for. Who has given no sign of life for too long is not waited for."""
        for child in self._children.values():
            if child.child and now_s >= child.deadline_s:
                child.end()
                child.child = 0
                silent = f"no sign of life for evaluator.patience_s={child.patience_s:g} after the end of the run"
                self._warn(child, f"the evaluator gave {silent}: it is not waited for")
        return not any(child.child for child in self._children.values())

    def _warn(self, child: EvaluatorChild, words: str) -> None:
        self._note(child, Warned(words))
        say(f"shoal: {words} (its log: {child.run_dir.logs / 'evaluator.log'})")

    def _note(self, child: EvaluatorChild, event: Event) -> None:
        with contextlib.suppress(ShoalError):  # a full disk: the run's own writing says so
            child.run_dir.append(event)

    def close(self) -> None:
        """End those that are left, and give everything back."""
        for child in self._children.values():
            child.end()
            child.close()
