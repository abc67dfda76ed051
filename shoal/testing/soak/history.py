"""What happens to a run, as a value: faults at steps, and how it is run again where they end it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from shoal.core.errors import ConfigError
from shoal.testing.soak.way import Way

FaultKind = Literal[
    "kill", "freeze", "preempt", "all", "server", "freeze-server", "coordinator", "loader", "zygote", "launcher",
    "everything", "interrupt", "scale",
]  # fmt: skip
Moment = Literal["forward", "loss", "step", "eval", "save"]
KINDS: tuple[FaultKind, ...] = (
    "kill", "freeze", "preempt", "all", "server", "freeze-server", "coordinator", "loader", "zygote", "launcher",
    "everything", "interrupt", "scale",
)  # fmt: skip
MOMENTS: tuple[Moment, ...] = ("forward", "loss", "step", "eval", "save")
ENDS: tuple[FaultKind, ...] = ("launcher", "everything", "interrupt")  # the same command is given again


@dataclass(frozen=True)
class Fault:
    """Once step `at` has come, at the next such `moment` of worker `target` (modulo how many there are).

    `target` is the number of the server where it hits one, and how many workers are wanted of a ``scale``. The moments:
    in the model's ``forward``, in the ``loss`` behind it, after a ``step`` is told, in an ``eval``, after a ``save``.
    """

    kind: FaultKind
    at: int
    target: int = 0
    moment: Moment = "forward"

    def text(self) -> str:
        return f"{self.kind}@{self.at}:{self.target}:{self.moment}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        kind, at, rest = text.partition("@")
        parts = rest.split(":")
        if kind not in KINDS or not at or len(parts) != 3 or parts[2] not in MOMENTS or not parts[0].isdigit():
            raise ConfigError(f"{text!r} is no fault: write such as kill@5:0:forward")
        return cls(kind, int(parts[0]), int(parts[1]), parts[2])


@dataclass(frozen=True)
class History:
    """`then`: the way in which a run goes on that a fault has ended; None: by the same command."""

    faults: tuple[Fault, ...] = ()
    then: Way | None = None

    @property
    def ends(self) -> int:
        """How often the run is ended, at least."""
        return sum(fault.kind in ENDS for fault in self.faults)


def draw_history(draw: random.Random, way: Way, then: Way, steps: int, leave_out: frozenset[str]) -> History:
    """What may happen to a run of so many steps. `then` is another way that it may go on by."""
    number = draw.choice((0, 1, 1, 1, 2, 2, 3))
    kinds: list[FaultKind] = ["kill", "all"] * 4
    kinds += ["interrupt"] * 3
    kinds += ["preempt", "scale"] * 2
    kinds += [
        "coordinator",
        "freeze",
        "launcher",
        "everything",
        "zygote",
    ]  # dear: a new zygote each
    if way.served:
        kinds += ["server", "server", "freeze-server", "all", "all"]
    if way.loaders:
        kinds += ["loader"] * 4
    kinds = [kind for kind in kinds if kind not in leave_out]
    faults = []
    for _ in range(number):
        kind = draw.choice(kinds)
        target = draw.randrange(max(way.servers, way.workers))
        if kind == "scale":
            target = draw.randrange(1, way.workers + way.room + 1)
        moment: Moment = draw.choice(("forward", "forward", "forward", "loss", "step", "eval", "save"))
        faults.append(Fault(kind, draw.randrange(1, max(2, steps - 1)), target, moment))
    faults.sort(key=lambda fault: fault.at)
    ended = any(fault.kind in ENDS for fault in faults)
    return History(tuple(faults), then if ended and draw.random() < 0.6 else None)
