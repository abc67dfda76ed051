"""The interface of callbacks: told of events, may ask the run to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from shoal.core.config import Config
from shoal.core.events import (
    CheckpointSaved,
    Decision,
    Evaluated,
    Event,
    Fault,
    FilesArrived,
    MemberJoined,
    MemberLost,
    Mirrored,
    RunEnded,
    RunStarted,
    StepCommitted,
    ViewChanged,
    Warned,
)


@dataclass(frozen=True)
class Stop:
    """Returned by a callback: end the run at this step, in good order, as `reason` says."""

    reason: str


@dataclass(frozen=True)
class RunInfo:
    """What a callback may look at. `module` is for reading only."""

    config: Config
    run_dir: Path
    strategy: str
    backend: str
    workers: int  # now
    total_steps: int
    steps_per_epoch: int
    module: nn.Module
    json_output: bool = False
    taken_over: bool = False  # this worker has become the first in the middle of the run
    resume_command: str = ""
    header: tuple[tuple[str, str], ...] = field(default=())  # what a user should know before the first step
    hosts: int = 1  # on which they are, now


class Callback:
    """Override what you need. Called on the first worker only, in the training thread, between steps: keep it short.

    An event that has no method of its own reaches `on_event`, which all events go through first. What a method raises
    ends the run like any error of the script.
    """

    def on_event(self, event: Event, run: RunInfo) -> Stop | None:
        """Every event passes here; the default calls the method for its kind."""
        method: Callable[..., Stop | None] | None = getattr(self, f"on_{event.kind}", None)
        return method(event, run) if method is not None else None

    def on_run_started(self, event: RunStarted, run: RunInfo) -> Stop | None:
        """Training begins or goes on."""

    def on_step(self, event: StepCommitted, run: RunInfo) -> Stop | None:
        """A step was committed."""

    def on_eval(self, event: Evaluated, run: RunInfo) -> Stop | None:
        """An evaluation ended."""

    def on_checkpoint(self, event: CheckpointSaved, run: RunInfo) -> Stop | None:
        """A checkpoint is complete on disk."""

    def on_arrivals(self, event: FilesArrived, run: RunInfo) -> Stop | None:
        """An epoch of a source that grows begins, with files of its own."""

    def on_mirror(self, event: Mirrored, run: RunInfo) -> Stop | None:
        """Something is to be told of a copy of a checkpoint."""

    def on_member_joined(self, event: MemberJoined, run: RunInfo) -> Stop | None:
        """A process has joined the run."""

    def on_member_lost(self, event: MemberLost, run: RunInfo) -> Stop | None:
        """A process has left the run, or was put out."""

    def on_view(self, event: ViewChanged, run: RunInfo) -> Stop | None:
        """The membership changed."""

    def on_fault(self, event: Fault, run: RunInfo) -> Stop | None:
        """Something went wrong."""

    def on_decision(self, event: Decision, run: RunInfo) -> Stop | None:
        """The run chose something by probing or timing."""

    def on_warning(self, event: Warned, run: RunInfo) -> Stop | None:
        """Something the user should know."""

    def on_run_ended(self, event: RunEnded, run: RunInfo) -> Stop | None:
        """The run is over, whatever its status."""
