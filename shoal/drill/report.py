"""What a drill found: values, and what they are in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

REPORT_VERSION = 1


@dataclass(frozen=True)
class FaultReport:
    """One fault: planned, and what came of it. Times are seconds; `time_s` since the hurt run's first event.

    `detected_s`: from the signal to the first word of the run that it had lost the member. `pause_s`: the longest gap
    between two committed steps around it. `missed`: why it never met a live process, or empty.
    """

    kind: str
    planned_step: int
    member: str = ""
    pid: int = 0
    at_step: int | None = None
    time_s: float | None = None
    ended_s: float | None = None
    detected_s: float | None = None
    pause_s: float | None = None
    cause: str = ""
    missed: str = ""

    @property
    def carried_out(self) -> bool:
        return not self.missed


@dataclass(frozen=True)
class RunFigures:
    """One of the two runs."""

    status: str
    exit_status: int
    strategy: str
    workers: int
    steps: int
    total_steps: int
    seconds: float
    training_s: float  # from the first committed step to the last
    median_step_s: float
    longest_gap_s: float
    lost_steps: int
    views: int
    coverage: Mapping[str, int]
    final: Mapping[str, float]
    params_sha256: str
    servers: int = 0
    synchronous: bool = True  # by its mathematics, it has the same parameters however it was hurt
    first_loss: float | None = None


@dataclass(frozen=True)
class Law:
    """Something that was promised: what was measured next to what is allowed."""

    name: str
    held: bool
    measured: str
    allowed: str


@dataclass(frozen=True)
class Limits:
    """What is allowed: relative difference of the parameters, seconds without a committed step, and, where a strategy
    is not synchronous, more loss than the calm run has, as a part of what that has learned."""

    tolerance: float = 5e-6
    deadline_s: float = 15.0
    loss_tolerance: float = 0.1


@dataclass(frozen=True)
class Report:
    """Both runs side by side."""

    script: str
    command: str
    calm: RunFigures
    hurt: RunFigures
    faults: tuple[FaultReport, ...]
    laws: tuple[Law, ...]
    limits: Limits
    loss_difference: float | None
    parameter_difference: float | None
    pace_s: float = 0.0
    notes: tuple[str, ...] = ()
    hurt_log: str = field(default="", compare=False)  # the end of it, where the run did not complete

    @property
    def broken(self) -> tuple[Law, ...]:
        return tuple(law for law in self.laws if not law.held)

    @property
    def missed(self) -> tuple[FaultReport, ...]:
        return tuple(fault for fault in self.faults if not fault.carried_out)

    @property
    def exit_status(self) -> int:
        """0: all laws held. 1: a law was broken. 3: none was, but not all faults could be carried out."""
        return 1 if self.broken else 3 if self.missed else 0

    def verdict(self) -> str:
        """One line."""
        count = len(self.faults) - len(self.missed)
        faults = "1 fault" if count == 1 else f"{count} faults"
        if self.broken:
            names = "; ".join(f"{law.name}: {law.measured}" for law in self.broken)
            return f"{len(self.broken)} of {len(self.laws)} laws broken under {faults}: {names}"
        if self.missed:
            return (
                f"no law was broken by {faults}, but {len(self.missed)} of {len(self.faults)} met nobody: "
                "let the run be longer (--epochs, --steps) or raise --pace"
            )
        return f"all laws held under {faults}"

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document.pop("hurt_log")
        for fault, value in zip(document["faults"], self.faults, strict=True):
            fault["carried_out"] = value.carried_out
        return {
            "v": REPORT_VERSION,
            "verdict": self.verdict(),
            "laws_held": not self.broken,
            "exit_status": self.exit_status,
            **document,
        }
