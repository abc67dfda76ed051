"""A host that joins a run: an agent with workers of its own, beside that of the launcher.

It ends with the run, or when it is told to (its workers finish their step first), or when the run's host is gone for
good. Everything happens in one thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.comm.control import MAX_WORKERS, ControlPage
from shoal.core.errors import ConfigError, ShoalError, UserError
from shoal.elastic.keys import ClientKeys, read_key_file
from shoal.elastic.link import Link
from shoal.elastic.messages import StoreGet
from shoal.elastic.status import AgentWord
from shoal.launch.agent import Agent, Place
from shoal.launch.crew import Hand
from shoal.launch.interfaces import Endpoint, remote_endpoint, route_to
from shoal.launch.interrupts import Interrupts
from shoal.launch.job import Job
from shoal.launch.nursery import Nursery, ReaperLost
from shoal.launch.offer import STORE_KEY, Offer, job_of
from shoal.launch.session import WARNING
from shoal.launch.supervisor import Stage
from shoal.launch.telling import Teller, say
from shoal.launch.zygote_messages import Ready, ZygoteRestarted

REACH_S = 20.0  # for the run to answer; its coordinator may just be starting
READY_S = 180.0  # to import torch, from a cold disk if need be
GONE_S = 60.0  # without an answer for so long, the run's host is gone
LEAVE_S = 30.0  # for workers to end a step and say goodbye
OVER_S = 15.0  # for workers to come to the end of the script, once the run is over
_LOOK_S = 0.5
_BEAT_S = 0.3
_GOODBYE_S = 5.0


@dataclass(frozen=True)
class Invitation:
    """What is needed to join a run: where it is, the key to it, and what it does."""

    endpoint: Endpoint
    keys: ClientKeys
    offer: Offer

    @property
    def address(self) -> str:
        return f"tcp://{self.endpoint}"


def invitation(place: str, key_file: str | Path, reach_s: float = REACH_S) -> Invitation:
    """Ask the run that listens at `place` (``ADDRESS:PORT``) what it does. Raises a `UserError`."""
    endpoint = remote_endpoint(place, "ADDRESS")
    keys, _ = read_key_file(key_file)
    route_to(endpoint.address)
    link = Link(f"tcp://{endpoint}", keys, _BEAT_S)
    try:
        until = time.monotonic() + reach_s
        while (left_s := until - time.monotonic()) > 0:
            (data,) = link.request(StoreGet((STORE_KEY,), min(_LOOK_S, left_s)), left_s)
            if data is not None:
                return Invitation(endpoint, keys, Offer.from_bytes(data))
        raise UserError(f"the run at {endpoint} takes no other hosts: it was started without --listen")
    except UserError:
        raise
    except ShoalError:
        raise UserError(
            f"no run answers at {endpoint}: is it still running, was it started with --listen, is {key_file} its key "
            "(a run has a new one at every start), and is that port open to this host? `shoal doctor --help` has more"
        ) from None
    finally:
        link.close()


class Joining:
    """One host's part in a run, with so many workers. `script`: where it lies here, if not where it does there."""

    def __init__(
        self, invited: Invitation, workers: int, script: Path | None = None, nursery: Nursery | None = None
    ) -> None:
        if not 1 <= workers <= MAX_WORKERS:
            raise ConfigError(f"--workers {workers}: between 1 and {MAX_WORKERS} are possible on one host")
        self._invited, self._workers, self._nursery = invited, workers, nursery
        self._job = job_of(invited.offer, script)

    def run(self) -> int:
        """Take part until the end; returns the exit status of the command. What went wrong has been shown."""
        with contextlib.ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            nursery = self._nursery if self._nursery is not None else Nursery()
            stack.callback(nursery.close)
            control = ControlPage()
            stack.callback(control.close)
            stay = _Stay(self._invited, self._job, self._workers, nursery, control, interrupts)
            stack.callback(stay.close)
            stay.until_over()
            nursery.close()
            return stay.outcome()


class _Stay:
    """One host's part, from the start of its workers to the end of the last."""

    def __init__(
        self,
        invited: Invitation,
        job: Job,
        workers: int,
        nursery: Nursery,
        control: ControlPage,
        interrupts: Interrupts,
    ) -> None:
        self._invited, self._nursery, self._control, self._interrupts = invited, nursery, control, interrupts
        self._selector = selectors.DefaultSelector()
        host = socket.gethostname()
        # a host that joins again is another agent: what the run still knows of the first is not meant for it
        place = Place(f"{host[:40]}-{os.urandom(4).hex()}", host, home=False, reach=route_to(invited.endpoint.address))
        self._agent = Agent(place, job, nursery, control, self._selector, workers)
        self._supervisor = self._agent.supervisor
        self._teller = Teller(job, self._agent)
        self._agent.on_tell, self._agent.on_report = self._teller.tell, self._on_report
        self._forked = False
        self._why = ""  # it ends, if that is no fault of its workers
        self._status = 0
        self._until_s = math.inf  # when it ends at the latest, once it is to end
        self._heard_s = time.monotonic()
        self._ready_until_s = time.monotonic() + READY_S
        self._selector.register(nursery, selectors.EVENT_READ, self._on_nursery)
        self._selector.register(interrupts, selectors.EVENT_READ, self._on_interrupt)

    def until_over(self) -> None:
        """Start the workers as soon as that can be, and watch them until the last has ended."""
        if self._nursery.ready:
            self._fork()
        while True:
            self._agent.watch()  # the end of the last worker may lead to another one's start
            if self._over():
                break
            self._follow()
            for key, _ in self._selector.select(0.0 if self._over() else self._patience_s()):
                key.data()
        self._agent.end()
        self._say_goodbye()

    def _patience_s(self) -> float:
        deadline_s = min(self._agent.deadline_s, self._until_s, self._ready_until_s if not self._forked else math.inf)
        return max(0.0, min(_LOOK_S, deadline_s - time.monotonic()))

    def _over(self) -> bool:
        now_s = time.monotonic()
        if not self._forked:
            if now_s >= self._ready_until_s:
                self._end(1, f"the process that starts workers was not ready within {READY_S:.0f} s", 0.0)
            return bool(self._why)
        return self._supervisor.over(now_s)

    # -- events

    def _on_nursery(self) -> None:
        for event in self._nursery.events():
            if isinstance(event, Ready):
                self._fork()
            elif isinstance(event, ReaperLost):
                self._end(1, f"the process that starts workers has ended (status {event.code})", 0.0)
                self._forked = False  # and they with it
            elif isinstance(event, ZygoteRestarted):
                self._teller.zygote_again(event)
            else:
                self._agent.on_child(event)

    def _fork(self) -> None:
        if self._why:
            return
        self._forked = True
        self._heard_s = time.monotonic()
        self._agent.join(self._invited.address, self._invited.keys)
        self._agent.begin((1, 2), None)
        self._agent.say()
        several = "s" if len(self._supervisor.workers) > 1 else ""
        say(
            f"shoal: joins the run at {self._invited.endpoint} with {len(self._supervisor.workers)} worker{several} on "
            f"{self._agent.place.host} ({self._agent.place.reach}); Ctrl-C leaves it at the end of a step"
        )

    def _on_report(self, hand: Hand, message: Mapping[str, Any]) -> None:
        if message.get("type") == WARNING:
            say(f"shoal: {message['message']}")

    def _on_interrupt(self) -> None:
        for _ in self._interrupts.take():
            if self._agent.leaving or not self._forked:
                self._end(1, "left at once, in the middle of a step", 0.0)
            else:
                say("shoal: leaving the run at the end of this step … (Ctrl-C again to leave at once)")
                self._end(0, "left the run", LEAVE_S)

    # -- what follows

    def _follow(self) -> None:
        """What follows from how the run stands."""
        now_s = time.monotonic()
        link = self._agent.link
        if link is None:
            return
        if link.alive:
            self._heard_s = now_s
        word = link.word if isinstance(link.word, AgentWord) else None
        if word is not None and word.over:
            # who is stuck now would be until then
            self._end(0, "the run is over", 0.0 if self._agent.stuck else OVER_S)
        elif now_s - self._heard_s > GONE_S:
            self._end(
                1, f"the run at {self._invited.endpoint} has not answered for {GONE_S:.0f} s: it is given up", 0.0
            )
        if now_s >= self._until_s and self._supervisor.stage < Stage.KILLING:
            for _ in range(2):  # as if the user had said so twice: at once
                self._supervisor.on_interrupt(2)

    def _end(self, status: int, why: str, within_s: float) -> None:
        """It is to end, within so many seconds. The first reason counts, the shortest time too. Nobody is replaced."""
        if not self._why:
            self._why, self._status = why, status
        self._until_s = min(self._until_s, time.monotonic() + within_s)
        self._supervisor.on_target(0)
        if not self._agent.leaving:
            self._agent.leaving = True
            self._agent.say()

    def _say_goodbye(self) -> None:
        self._agent.leaving = True
        self._agent.say()
        if self._agent.link is not None and self._agent.link.alive:
            self._agent.link.flush(_GOODBYE_S)

    # -- the end

    def outcome(self) -> int:
        """How it ended; shows it to the user."""
        supervisor = self._supervisor
        if supervisor.failures and not self._why:
            say(self._teller.failure())
            return supervisor.status or 1
        if self._why:
            late = (
                " (workers did not end in time, and were killed)" if self._status == 0 and supervisor.interrupts else ""
            )
            say(f"shoal: {self._why}{late}")
            return self._status
        if supervisor.finishing:
            say("shoal: the run is over")
            return 0
        say("shoal: no worker is left on this host, and none may be started in its place")
        return 1

    def close(self) -> None:
        self._agent.close()
        self._selector.close()
