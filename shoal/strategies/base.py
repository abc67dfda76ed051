"""The interface of strategies: how a program is distributed over workers.

A strategy owns forward, backward, synchronisation and update; the trainer owns what comes next, when to evaluate and
when to save, and never asks which strategy it has. What the trainer needs to know is said in values: `Needs` before
the run, `StepResult` after each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.comm.control import ControlPage
from shoal.comm.group import Group
from shoal.core.config import AsynchronousSettings, Clip, HybridSettings, IncrementalSettings, ServerSettings
from shoal.core.cursor import GlobalBatch
from shoal.core.grains import Grain
from shoal.core.spans import Spans
from shoal.core.staleness import Aging
from shoal.core.state import Piece, ShardedState
from shoal.core.teams import Part
from shoal.core.world import View, World
from shoal.strategies.drawing import DrawRules
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from shoal.comm.codecs.choose import CodecChoice
    from shoal.store.access import FleetAccess
    from shoal.strategies.sizing import Bounds, SizeWish


@dataclass(frozen=True)
class Needs:
    """What a strategy needs of a run, and whether a run with it survives the loss of a worker: it then says in each
    `StepResult` what its peers have computed, and keeps its promises on `discard`, `reconfigure` and `live_state`.
    `leases`: it is not given its part of a batch, but takes parts of a whole stretch of batches as it gets on.
    `sizes`: it measures what computing and sending cost, and can say how many workers would be best.
    `statistics`: it can combine what batch normalisation looks at over the workers of a global batch.
    `whole`: once it is bound, the model of every worker is whole and the same, and can be run by each on its own.
    `apart`: between two meetings no worker waits for another, so what all must find alike it lets each find out then,
    by `Work.probe`, and they compare where they meet."""

    max_workers: int | None = None
    servers: bool = False
    survives: bool = False
    leases: bool = False
    sizes: bool = False
    statistics: bool = False
    whole: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Runtime:
    """What a run offers to a strategy. `group` is always there; a strategy need not send gradients through it.

    `alike`: the caller sees to it that all workers begin with the same state, so `bind` has nothing to make equal."""

    world: World
    view: View
    group: Group
    control: ControlPage
    seed: int
    clip: Clip = field(default_factory=Clip)
    precision: str = "float32"
    exact_sums: bool = False  # add gradients of grains up in float64, so that the order leaves no trace
    statistics: str = "grain"  # what batch normalisation looks at, or "global": the whole batch
    draws: DrawRules | None = None  # how what the model draws is told apart by sample; None: it is seeded by grain
    layout: str = "as_given"  # of images in memory, or "channels_last"
    bucket_bytes: int = 4 << 20
    alike: bool = False
    spans: Spans = field(default_factory=Spans)
    codec: str = "none"
    store: Callable[[], Store] | None = None  # of the view; None where this worker is alone
    subgroup: Callable[[Part], Group] | None = None  # of some members of the view
    weights: tuple[float, ...] = ()  # the shares of the workers, in the order of ranks; none: equal ones
    incremental: IncrementalSettings = field(default_factory=IncrementalSettings)
    hybrid: HybridSettings = field(default_factory=HybridSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    asynchronous: AsynchronousSettings = field(default_factory=AsynchronousSettings)
    fit: int = 0  # which of the script's runs this is
    fleet: FleetAccess | None = None  # the servers, where the strategy needs them
    compares: bool = True  # workers look now and then whether all hold the same model
    hang_s: float = 60.0  # after which a server that shows no sign of life is replaced
    bounds: Bounds | None = None  # of the number of workers, where the strategy may wish for another


@dataclass(frozen=True)
class Pass:
    """Samples that go through the model in one pass: one grain, or several where the model cannot tell."""

    grains: tuple[Grain, ...]
    indices: npt.NDArray[np.int64]
    batch: Batch

    @property
    def samples(self) -> int:
        return len(self.indices)


Portion = tuple[GlobalBatch, tuple[Grain, ...]]  # some grains of a batch


@dataclass(frozen=True)
class Work:
    """One worker's part of a global batch, and what every worker must know of it.

    `passes` may be empty: a worker without samples still takes part. `learning_rates` has one entry for each
    parameter group of the optimizer. `stop` says that this worker was asked to stop, `change` that it knows of a change
    of the membership for which the view should be left after this step.

    An act may span a stretch of global batches, `batch` being the first: `stretch` has all of them, each with its
    learning rates. A strategy that leases finds no `passes`: it gives `stream` the parts that it takes, one after the
    other, and gets each as passes; `wishes` says what `stop` and `change` are by then.

    `probe`, where given, is called once, as soon as nobody waits for this worker and before anything is done to the
    model, which is the same on all workers until then: it returns a loss that all must find alike.
    """

    batch: GlobalBatch
    passes: Sequence[Pass]
    learning_rates: tuple[float, ...]
    stop: bool = False
    change: bool = False
    data_s: float = 0.0
    save: bool = False  # this worker wants the state to be saved after this act
    stretch: Sequence[tuple[GlobalBatch, tuple[float, ...]]] = ()
    stream: Callable[[Iterable[Portion]], Iterator[Sequence[Pass]]] | None = None
    wishes: Callable[[], tuple[bool, bool]] | None = None
    probe: Callable[[], float] | None = None


@dataclass(frozen=True)
class Span:
    """Samples that a worker has computed: positions ``[start, stop)`` of the epoch's order, and a digest of the numbers
    of the samples, by which everyone can tell that they were the right ones."""

    start: int
    stop: int
    digest: int


@dataclass(frozen=True)
class StepResult:
    """What a step did. `committed` are the samples of this worker whose effect is now in the common model: those of
    this step, none (a local step that is not yet shared), or those of many (the step that shares them).
    `spans` are those of all workers, as each has stated its own. `loss_sum` and `loss_weight` are the group's;
    `stop`, `change` and `save` are what the group agreed on;
    `codec` is the one that it has just chosen, if any, `size` the number of workers that it wishes for.
    `probed` is what every worker's `Work.probe` has returned, in the order of ranks; empty where not all had one.
    Where workers do not go in step, `staleness` says of each batch how many commits lay between reading and committing,
    `lead` by how many tasks a worker was ahead of the slowest when it began one, at most."""

    loss_sum: float
    loss_weight: float
    committed: npt.NDArray[np.int64]
    stop: bool = False
    timings: tuple[Mapping[str, float], ...] = ()
    bytes_sent: int = 0  # by this worker
    change: bool = False
    spans: tuple[Span, ...] = ()
    save: bool = False
    codec: CodecChoice | None = None
    size: SizeWish | None = None
    batches: int | None = None  # how many of the stretch were done: a part from its beginning; None: all
    staleness: tuple[int, ...] = ()
    lead: int = 0
    probed: tuple[float, ...] = ()

    @property
    def loss(self) -> float:
        return self.loss_sum / self.loss_weight if self.loss_weight else self.loss_sum


Sums = dict[str, tuple[float, float]]  # name -> (sum, weight); weight 0 means a plain sum

ReplicaT = TypeVar("ReplicaT")


class Strategy(ABC, Generic[ReplicaT]):
    """A way of distributing. Stateless itself: all state is in the replica that `bind` makes."""

    name: ClassVar[str]
    needs: ClassVar[Needs] = Needs()

    @abstractmethod
    def bind(self, program: Program, runtime: Runtime) -> ReplicaT:
        """Wrap, shard or split the model and build the optimizer. Collective. Afterwards all workers agree on the
        parameters: those of the first worker."""

    @abstractmethod
    def step(self, replica: ReplicaT, work: Work) -> StepResult:
        """Forward, backward, synchronise, update: one transaction. Collective. Raises `NonFiniteLoss` and leaves
        the model as it was where the loss is not finite."""

    @abstractmethod
    def evaluate(self, replica: ReplicaT, batch: Batch) -> Sums:
        """Loss and metrics of one batch, as sums and weights of this worker. Not collective."""

    @abstractmethod
    def state(self, replica: ReplicaT) -> ShardedState:
        """What this worker contributes to a checkpoint; views of live tensors, to be copied before the next step.
        Collective. A worker that holds nothing of its own returns an empty state."""

    @abstractmethod
    def load(self, replica: ReplicaT, state: ShardedState) -> None:
        """Take over the whole state, whichever strategy wrote it. Collective: every worker is given all of it."""

    @abstractmethod
    def initial_learning_rates(self, replica: ReplicaT) -> tuple[float, ...]:
        """The learning rate of each parameter group as the user's optimizer states it, before any schedule."""

    def discard(self, replica: ReplicaT) -> None:
        """A step was broken off because a peer is lost: make the replica as it was before that step. Not collective."""

    def reconfigure(self, replica: ReplicaT, program: Program, runtime: Runtime) -> ReplicaT:
        """Take part in another view, with `runtime`, from the live state of `replica`. Collective. By default the state
        is taken out, the program bound anew, and the state put back in."""
        state = self.live_state(replica)
        copies = {name: Piece(p.tensor.detach().clone(), p.shape, p.offset) for name, p in state.pieces.items()}
        self.close(replica)
        bound = self.bind(program, runtime)
        self.load(bound, ShardedState(copies, state.values))
        return bound

    def live_state(self, replica: ReplicaT) -> ShardedState:
        """The whole state, for a worker that has none, from a worker of any rank. Not collective."""
        return self.state(replica)

    def reach(self, replica: ReplicaT) -> int:
        """How many global batches the next act may span. The same on every worker."""
        return 1

    def aging(self, replica: ReplicaT) -> Aging | None:
        """What updates that are old come to; None where none are."""
        return None

    def known_limits(self, replica: ReplicaT) -> list[str]:
        """What a user should know before the first step of what is done otherwise than one process would."""
        return []

    def share(self, batch: GlobalBatch, world: World, weights: Sequence[float]) -> tuple[Grain, ...]:
        """The grains whose samples this worker must be given. Pure. The default divides the batch."""
        return batch.share(world.rank, weights)

    def close(self, replica: ReplicaT) -> None:
        """Give back what the replica holds. Not collective; may be called twice."""
