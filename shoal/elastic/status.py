"""What members and the coordinator tell each other, as values.

Every message states the whole of what its sender knows, never a change: a message that is lost, repeated or overtaken
does no harm, and a coordinator that has crashed learns everything from the next message of each member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.core.phases import UNKNOWN
from shoal.core.world import View

WorkerState = Literal["door", "in", "left", "broken", "going", "gone", "finished"]


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker says of itself, at every change and at every beat.

    States: ``door`` (waits for its first view of `fit`; it has no model state yet), ``in`` (takes part in `view`),
    ``left`` (left `view` at the end of a step and waits for the next), ``broken`` (left `view` in the middle of
    something, because a peer is lost, and waits for the next), ``going`` (takes part in `view`, and will leave the run
    at the end of a step), ``gone`` (has left the run in good order), ``finished`` (has finished `fit`: no part of any
    view until it comes to the door of a later one).
    """

    key: str
    agent: str
    host: str
    pid: int
    seat: int
    address: str
    fit: int
    view: int  # the last view it took part in; 0: none
    state: WorkerState


@dataclass(frozen=True)
class WorkerWord:
    """What the coordinator says to a worker, in answer to every status and whenever it changes.

    `view` is the newest view that the worker is a member of, if there is one. Views up to number `broken` must be left
    at once, those up to `change` at the end of a step. Fits below `over` are finished: who waits for one goes on.
    `running`: others are under way, so that who waits at the door may have to wait for as long as a step takes, or for
    a place. `leave`: the worker is asked to go at the end of a step. `out`: why it was put out of the run; empty if it
    was not. `awaited` names those for whom the next view waits.
    """

    view: View | None = None
    broken: int = 0
    change: int = 0
    over: int = 0
    leave: bool = False
    out: str = ""
    awaited: tuple[str, ...] = ()
    running: bool = False


@dataclass(frozen=True)
class Still:
    """A worker that has not moved for so many seconds, though the run was asked to stop: where it is, and whether it
    waits for others there."""

    seconds: float
    waiting: bool
    step: int
    phase: str


@dataclass(frozen=True)
class WorkerNote:
    """What an agent says of a worker that it has started. `alive`: the process computes, as seen from outside
    (it used the processor since the last look), though it may be unable to say so itself. Once `ended`, `cause` says
    how, in one line. `step` and `phase`: where it was at the last look, or when it ended. `unheard`: the rank, in the
    newest view, of a worker that does not get what this one sends. `still`: it does not move; None while it does, and
    where nobody has looked."""

    pid: int
    alive: bool = False
    ended: bool = False
    cause: str = ""
    preempted: bool = False  # it was told to go, by SIGTERM or by its host's end
    step: int = 0
    phase: str = UNKNOWN
    unheard: int | None = None
    still: Still | None = None


@dataclass(frozen=True)
class AgentStatus:
    """What an agent says of its host, at every change and at every beat. `home`: it is the launcher, whose host has the
    run directory. `capacity`: how many workers it is ready to run. For the launcher alone to say: `stopping`, the run
    was asked to stop; `condemned`, workers of other agents that the run is to go on without, with the cause."""

    agent: str
    host: str
    home: bool
    capacity: int
    workers: Mapping[str, WorkerNote] = field(default_factory=dict)
    leaving: bool = False
    stopping: bool = False
    condemned: Mapping[str, str] = field(default_factory=dict)

    def repeated(self) -> AgentStatus:
        """What of it may be said again without another look: not that a worker lives, nor that it does not move."""
        notes = {key: replace(note, alive=False, still=None) for key, note in self.workers.items()}
        return replace(self, workers=notes)


@dataclass(frozen=True)
class Loss:
    """Why a worker was lost, in one line, and where it was when its agent was last heard."""

    cause: str
    step: int = 0
    phase: str = UNKNOWN


@dataclass(frozen=True)
class AgentWord:
    """What the coordinator says to an agent. `evict`: workers that are out, with the cause: kill them. `target`: how
    many workers the agent should run now. `view`: the current view, for whoever reports. `over`: the run has ended.
    `lost`: the workers of any host that were lost last. `unheard`: members of the view who are not heard by another,
    with that one's rank. `stopping`: the run was asked to stop. `still`: members of the view who do not move, as their
    agents have said just now."""

    evict: Mapping[str, str] = field(default_factory=dict)
    target: int | None = None
    view: View | None = None
    over: bool = False
    lost: Mapping[str, Loss] = field(default_factory=dict)
    unheard: Mapping[str, int] = field(default_factory=dict)
    stopping: bool = False
    still: Mapping[str, Still] = field(default_factory=dict)
