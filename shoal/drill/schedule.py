"""Which faults come when: values, and a random schedule as a pure function of its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.errors import ConfigError
from shoal.drill.kinds import KINDS, Kind
from shoal.launch.coordinating import RESTARTS

# a random fault comes neither before the run is under way nor too late for what follows it to be seen
FIRST_PART, LAST_PART = 0.05, 0.9


@dataclass(frozen=True)
class FaultPlan:
    """One fault: of `kind`, as soon as step `at_step` is committed.

    `target` is the rank of the worker, or the number of the server or of the host; whoever is next where that one is
    not there. The coordinator needs none. `seconds` is how long it lasts (None: what is usual for the kind).
    """

    kind: str
    at_step: int
    target: int = 0
    seconds: float | None = None

    @property
    def lasts_s(self) -> float | None:
        """How long the fault lasts; None: for ever."""
        return self.seconds if self.seconds is not None else KINDS.get(self.kind).seconds

    def words(self) -> str:
        """``kill of worker 1 at step 20``."""
        aim = KINDS.get(self.kind).aims_at
        whom = "" if aim == "coordinator" else f" of {aim} {self.target}"
        return f"{self.kind}{whom} at step {self.at_step}"


def random_schedule(
    seed: int, faults: int, kinds: Sequence[Kind], steps: int, workers: int, hosts: int = 1, servers: int = 1
) -> list[FaultPlan]:
    """`faults` plans over a run of `steps` steps, in order; the same arguments give the same plans.

    The run is cut into as many parts as there are faults, and each fault comes in the first half of its part: between
    two faults there is at least half a part for the group to become whole again. Kinds come in turn, shuffled anew
    each round, so that each kind comes about as often as any other. Raises ConfigError where they do not fit.
    """
    first, last = max(1, int(steps * FIRST_PART)), int(steps * LAST_PART)
    if last - first < faults:
        raise ConfigError(
            f"--faults {faults} do not fit into a run of {steps} steps, of which {max(0, last - first)} can be hurt: "
            "give fewer, or a longer run (--epochs, --steps)"
        )
    draw = random.Random(seed)  # noqa: S311 - a schedule to be repeated, no secret
    part = (last - first) / max(1, faults)
    plans: list[FaultPlan] = []
    deck: list[Kind] = []
    for number in range(faults):
        if not deck:
            deck = list(kinds)
            draw.shuffle(deck)
        kind = deck.pop()
        at_step = first + int(part * number + draw.random() * max(0.0, part / 2 - 1))
        # host 0 is home: without it there is no run to hurt
        among = {
            "worker": range(workers),
            "server": range(max(1, servers)),
            "coordinator": range(1),
            "host": range(1, max(2, hosts)),
        }
        plans.append(FaultPlan(kind.name, at_step, draw.choice(among[kind.aims_at])))
    return plans


def check_plans(plans: Sequence[FaultPlan], steps: int, workers: int, hosts: int = 1) -> None:
    """Refuse plans that this run can never meet. Raises ConfigError that names the plan."""
    coordinators = sum(KINDS.get(plan.kind).aims_at == "coordinator" for plan in plans)
    if coordinators > RESTARTS:
        raise ConfigError(
            f"the schedule ends the coordinator {coordinators} times, and a run starts it again {RESTARTS} times at "
            "most: give fewer such faults"
        )
    for plan in plans:
        aim = KINDS.get(plan.kind).aims_at
        if plan.at_step >= steps:
            raise ConfigError(
                f"the schedule has a {plan.words()}, but the run has {steps} steps: "
                f"let it come before step {steps}, or make the run longer (--epochs, --steps)"
            )
        if aim == "worker" and plan.target >= workers:
            raise ConfigError(
                f"the schedule has a {plan.words()}, but --workers {workers} are numbered 0 to {workers - 1}"
            )
        if aim == "host" and not 1 <= plan.target < hosts:
            raise ConfigError(
                f"the schedule has a {plan.words()}, but of --hosts {hosts} only 1 to {hosts - 1} can be cut: "
                "host 0 is where the run was started"
            )


def room_s(plan: FaultPlan) -> float:
    """How long a run should go on after this fault, for it to be felt and for the group to be whole again, on a machine
    that is busy. Not counted: what stands still meanwhile anyway."""
    return 2.0 * (plan.lasts_s or 0.0) if KINDS.get(plan.kind).aims_at == "host" else 1.2


def pace_for(plans: Sequence[FaultPlan], steps: int, step_s: float, start_s: float = 0.0) -> float:
    """The seconds to wait before each step so that a run of `steps` steps of `step_s` gives each fault its room, after
    `start_s` in which nothing can be hurt yet; 0 where the run is long enough as it is."""
    if not plans or not steps:
        return 0.0
    wanted = (start_s + sum(room_s(plan) for plan in plans)) / (steps * (LAST_PART - FIRST_PART))
    return 0.0 if wanted <= step_s else round(wanted - step_s, 3)
