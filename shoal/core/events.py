"""What happened in a run, as values: one line of `events.jsonl` each, and what callbacks are told.

The schema is versioned: a reader may rely on the fields of a kind as long as `v` is the same; fields may be added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from shoal.core.cursor import Cursor

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str]

    def to_json(self, time: float) -> dict[str, Any]:
        return {"v": SCHEMA_VERSION, "time": round(time, 6), "kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class RunStarted(Event):
    """Training is about to begin, or to go on where `cursor` says; `train_loss` is that of its epoch so far."""

    kind: ClassVar[str] = "run_started"
    strategy: str
    backend: str
    workers: int
    cursor: Cursor
    total_steps: int
    steps_per_epoch: int
    samples: int
    resumed_from: str | None = None
    train_loss: float | None = None


@dataclass(frozen=True)
class MemberJoined(Event):
    kind: ClassVar[str] = "member_joined"
    role: str
    rank: int
    host: str
    pid: int


@dataclass(frozen=True)
class MemberLost(Event):
    kind: ClassVar[str] = "member_lost"
    role: str
    rank: int
    host: str
    pid: int
    cause: str


@dataclass(frozen=True)
class ViewChanged(Event):
    kind: ClassVar[str] = "view"
    number: int
    members: tuple[str, ...]
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepCommitted(Event):
    """A step is part of the model. `cursor` is behind it; `loss` is that of its samples, `train_loss` that of all
    samples of the epoch so far, which is what users are shown; `timings` holds seconds by span for each worker. Where
    workers do not go in step, `staleness` says of each batch how many commits lay between reading and committing, and
    `lead` by how many tasks a worker was ahead of the slowest when it began one, at most."""

    kind: ClassVar[str] = "step"
    cursor: Cursor
    loss: float
    samples: int
    learning_rates: tuple[float, ...]
    step_s: float
    timings: tuple[Mapping[str, float], ...] = ()
    staleness: tuple[int, ...] = ()
    lead: int = 0
    train_loss: float | None = None


@dataclass(frozen=True)
class Evaluated(Event):
    """The model as it was at `cursor` was evaluated, `by` the workers or by the evaluator, which comes later."""

    kind: ClassVar[str] = "eval"
    cursor: Cursor
    values: Mapping[str, float]
    seconds: float
    by: str = "workers"


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint is complete on disk."""

    kind: ClassVar[str] = "checkpoint"
    cursor: Cursor
    path: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class Mirrored(Event):
    """What became of the copy of `checkpoint` at the mirror `place`: ``copied`` (and verified), ``away`` (the place
    cannot be used, and is tried again), ``failed`` (it is not tried again), ``left`` (the run has ended without it).
    At the end of a run ``copying`` says what `part` of the last one is done; when a run goes on, ``resumed`` says that
    it does so from there, and ``older`` that it does not."""

    kind: ClassVar[str] = "mirror"
    checkpoint: str
    place: str
    status: str
    size_bytes: int = 0
    seconds: float = 0.0
    reason: str = ""
    part: float = 0.0


@dataclass(frozen=True)
class FilesArrived(Event):
    """`epoch` trains on these files of a source that grows, and on no others. `over`: nothing more has come."""

    kind: ClassVar[str] = "arrivals"
    epoch: int
    files: tuple[str, ...]
    samples: int
    over: bool = False


@dataclass(frozen=True)
class Fault(Event):
    """Something went wrong: who, where, why; `phase` is what the member did last, `stack` its Python stack where that
    could be taken from outside. `resumed_s`: from then to the next committed step; known at the end of the run."""

    kind: ClassVar[str] = "fault"
    at_step: int
    member: str
    cause: str
    phase: str = ""
    detected_s: float = 0.0
    resumed_s: float | None = None
    stack: str = ""


@dataclass(frozen=True)
class Decision(Event):
    """A choice made by timing or probing, so that it can be replayed."""

    kind: ClassVar[str] = "decision"
    what: str
    chosen: str
    why: str


@dataclass(frozen=True)
class CodecChosen(Event):
    """From batch `step` on, gradients are coded by `codec`: what was measured and left to be chosen."""

    kind: ClassVar[str] = "codec"
    step: int
    codec: str
    reason: str
    predicted_s: dict[str, float]


@dataclass(frozen=True)
class Balanced(Event):
    """From the batch with number `step` on, counted from 0, it is divided among the workers by `weights`."""

    kind: ClassVar[str] = "balance"
    step: int
    weights: tuple[float, ...]
    reason: str


@dataclass(frozen=True)
class SizeWished(Event):
    """After `step` steps the run asks for `workers` instead of those `before`. A view says when they are there."""

    kind: ClassVar[str] = "size"
    step: int
    before: int
    workers: int
    reason: str


@dataclass(frozen=True)
class ServerStands(Event):
    """Something has changed in who holds server `rank`: `term` grows with everyone who takes it over. `whole`: whoever
    holds it knows that, and there are as many copies as there should be."""

    kind: ClassVar[str] = "server"
    rank: int
    term: int
    whole: bool


@dataclass(frozen=True)
class Warned(Event):
    kind: ClassVar[str] = "warning"
    message: str


@dataclass(frozen=True)
class RunEnded(Event):
    """The run is over: `status` is completed, stopped, interrupted or failed; `again`: the same command may get
    further."""

    kind: ClassVar[str] = "run_ended"
    status: str
    cursor: Cursor
    reason: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    again: bool = True
