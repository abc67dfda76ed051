"""Carries out a schedule of faults on a run that is under way."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.drill.hands import Hands
from shoal.drill.kinds import KINDS
from shoal.drill.scene import Event, Member, Scene
from shoal.drill.schedule import FaultPlan

SLOW_RUN_S = 0.05  # a slowed worker runs so long between two stops, which are four times as long


@dataclass(frozen=True)
class Hit:
    """A fault that met a live process, at `time` (wall clock), when step `at_step` was the last one known.

    `ended` is when the fault itself was over: the worker continued, the link mended, a new coordinator was there.
    `server`: which one it was, if it was one.
    """

    plan: FaultPlan
    at_step: int
    time: float
    pid: int
    member: str
    ended: float | None = None
    server: int | None = None


@dataclass(frozen=True)
class Missed:
    """A fault that met nobody before the run was over, and why."""

    plan: FaultPlan
    why: str


class Injector:
    """Ready when made. Call `learn` with new events and `act` every few milliseconds; both return at once.

    A fault comes when its step is committed. It is held back while it would leave nobody who has the state (law 2
    promises nothing then), and tried again after the next step if it met nobody. Two faults of different steps never
    come in the same step.
    """

    def __init__(
        self, plans: Sequence[FaultPlan], hands: Hands, lease_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._pending = sorted(plans, key=lambda plan: plan.at_step)
        self._hands = hands
        self._stop_s = min(4 * SLOW_RUN_S, lease_s / 4)  # short enough that the lease is never in danger
        self._clock = clock
        self.scene = Scene()
        self._hits: list[Hit] = []
        self._victims: set[int] = set()
        self._stopped: dict[int, float | None] = {}  # frozen workers and servers, and when they go on
        self._slowed: dict[int, tuple[float, float, bool]] = {}  # until when, next change, whether stopped now
        self._cut: dict[int, float | None] = {}
        self._tried: tuple[FaultPlan, int] | None = None
        self._why = ""

    # ---- what is known

    @property
    def hits(self) -> list[Hit]:
        """The faults so far, in the order in which they came."""
        return list(self._hits)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def missed(self) -> list[Missed]:
        """What has not met anyone. Ask when the run is over."""
        first = self._why or "the run was over before its step came"
        late = "the run was over first"
        return [Missed(plan, first if at == 0 else late) for at, plan in enumerate(self._pending)]

    # ---- what is done

    def learn(self, events: Iterable[Event]) -> None:
        self.scene.learn(events)

    def act(self) -> list[Hit]:
        """Do what is due, and return the faults that came just now."""
        self._continue()
        before = len(self._hits)
        while self._pending and not self.scene.ended:
            plan, step = self._pending[0], self.scene.step
            crowded = (
                bool(self._hits) and self._hits[-1].at_step == step and self._hits[-1].plan.at_step != plan.at_step
            )
            if step < plan.at_step or crowded or self._tried == (plan, step):
                break
            hit = self._carry_out(plan)
            if hit is None:
                self._tried = (plan, step)
                break
            self._pending.pop(0)
            self._why = ""
            self._hits.append(hit)
        return self._hits[before:]

    def release(self) -> None:
        """Let go of everyone who is still held: for the end of a drill."""
        for pid in {*self._stopped, *self._slowed}:
            self._hands.send(pid, signal.SIGCONT)
        for host in self._cut:
            self._hands.mend(host)
        self._stopped, self._slowed, self._cut = {}, {}, {}

    # ---- single faults

    def _carry_out(self, plan: FaultPlan) -> Hit | None:
        kind = KINDS.get(plan.kind)
        if kind.aims_at == "coordinator":
            return self._hit_coordinator(plan)
        if kind.aims_at == "host":
            return self._hit_host(plan)
        if kind.aims_at == "server":
            return self._hit_server(plan)
        able = self._able()
        if len(able) < (2 if kind.removes else 1):
            self._why = "it would have left nobody who has the state"
            return None
        member = _aim(able, plan.target)
        now = self._clock()
        if not self._strike(plan, member.pid, now):
            self._why = f"{member.name} was gone"
            return None
        return Hit(plan, self.scene.step, now, member.pid, member.name)

    def _able(self) -> list[Member]:
        """Those of the view who have the state and whom nothing keeps from going on."""
        away = {self._hands.host_name(host) for host in self._cut}
        hurt = self._victims | set(self._stopped)
        return [
            one
            for one in self.scene.members
            if one.pid not in hurt and one.host not in away and self._hands.alive(one.pid)
        ]

    def _strike(self, plan: FaultPlan, pid: int, now: float) -> bool:
        send, act = self._hands.send, KINDS.get(plan.kind).act
        if act in ("kill", "preempt"):
            met = send(pid, signal.SIGKILL if act == "kill" else signal.SIGTERM)
            self._victims |= {pid} if met else set()
            return met
        if not send(pid, signal.SIGSTOP):
            return False
        lasts = plan.lasts_s
        if act == "freeze":
            self._stopped[pid] = None if lasts is None else now + lasts
        else:
            self._slowed[pid] = (now + (lasts or 0.0), now + self._stop_s, True)
        return True

    def _hit_server(self, plan: FaultPlan) -> Hit | None:
        """Hit the process that holds a server: the oldest of its processes, as a copy that has taken over is, too."""
        hurt, scene = {*self._victims, *self._stopped, *self._slowed}, self.scene
        able = [
            at
            for at, pids in sorted(scene.servers.items())
            if pids and at in scene.whole and all(pid not in hurt and self._hands.alive(pid) for pid in pids)
        ]
        if not able:
            self._why = "no server was whole again" if scene.servers else "there was no server"
            return None
        server, now = min(able, key=lambda at: (at < plan.target, at)), self._clock()
        pid = scene.servers[server][0]
        if not self._strike(plan, pid, now):
            self._why = f"server {server} was gone"
            return None
        return Hit(plan, scene.step, now, pid, f"server {server}", server=server)

    def _hit_coordinator(self, plan: FaultPlan) -> Hit | None:
        pid, now = self._hands.coordinator(), self._clock()
        if pid is None or not self._hands.send(pid, signal.SIGKILL):
            self._why = "there was no live coordinator"
            return None
        return Hit(plan, self.scene.step, now, pid, "coordinator")

    def _hit_host(self, plan: FaultPlan) -> Hit | None:
        now, name = self._clock(), self._hands.host_name(plan.target)
        able = self._able()
        if all(one.host == name for one in able):
            self._why = "it would have left nobody who has the state"
            return None
        if all(one.host != name for one in able):
            self._why = f"host {plan.target} did not take part"
            return None
        if plan.target in self._cut or not self._hands.cut(plan.target):
            self._why = f"host {plan.target} had no link to cut"
            return None
        lasts = plan.lasts_s
        self._cut[plan.target] = None if lasts is None else now + lasts
        return Hit(plan, self.scene.step, now, 0, name)

    # ---- what lasts

    def _continue(self) -> None:
        now = self._clock()
        for pid, until in list(self._stopped.items()):
            if until is not None and now >= until:
                del self._stopped[pid]
                self._hands.send(pid, signal.SIGCONT)
                self._over(now, pid=pid)
        for pid, (until, change, stopped) in list(self._slowed.items()):
            if now >= until or not self._hands.alive(pid):
                del self._slowed[pid]
                self._hands.send(pid, signal.SIGCONT)
                self._over(now, pid=pid)
            elif now >= change:
                self._hands.send(pid, signal.SIGCONT if stopped else signal.SIGSTOP)
                self._slowed[pid] = (until, now + (SLOW_RUN_S if stopped else self._stop_s), not stopped)
        for host, until in list(self._cut.items()):
            if until is not None and now >= until:
                del self._cut[host]
                self._hands.mend(host)
                self._over(now, member=self._hands.host_name(host))
        for hit in self._hits:
            if hit.plan.kind == "coordinator" and hit.ended is None:
                successor = self._hands.coordinator()
                if successor is not None and successor != hit.pid:
                    self._over(now, pid=hit.pid)

    def _over(self, now: float, pid: int | None = None, member: str = "") -> None:
        for at, hit in enumerate(self._hits):
            if hit.ended is None and (hit.pid == pid if pid is not None else hit.member == member):
                self._hits[at] = replace(hit, ended=now)


def _aim(able: Sequence[Member], target: int) -> Member:
    """The member of that rank, or the next one round the ring."""
    return min(able, key=lambda one: (one.rank < target, one.rank))
