"""The interface of strategies: how a program is distributed over workers.

A strategy owns forward, backward, synchronisation and update; the trainer owns what comes next, when to evaluate and
when to save, and never asks which strategy it has. What the trainer needs to know is said in values: `Needs` before
the run, `StepResult` after each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.comm.control import ControlPage
from shoal.comm.group import Group
from shoal.core.config import Clip
from shoal.core.cursor import GlobalBatch
from shoal.core.grains import Grain
from shoal.core.spans import Spans
from shoal.core.state import ShardedState
from shoal.core.world import View, World
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program


@dataclass(frozen=True)
class Needs:
    """What a strategy needs of a run and what it can survive."""

    max_workers: int | None = None
    servers: bool = False


@dataclass(frozen=True)
class Runtime:
    """What a run offers to a strategy. `group` is always there; a strategy need not send gradients through it."""

    world: World
    view: View
    group: Group
    control: ControlPage
    seed: int
    clip: Clip = field(default_factory=Clip)
    precision: str = "float32"
    exact_sums: bool = False  # add gradients of grains up in float64, so that the order leaves no trace
    layout: str = "as_given"  # of images in memory, or "channels_last"
    bucket_bytes: int = 4 << 20
    spans: Spans = field(default_factory=Spans)


@dataclass(frozen=True)
class Pass:
    """Samples that go through the model in one pass: one grain, or several where the model cannot tell."""

    grains: tuple[Grain, ...]
    indices: npt.NDArray[np.int64]
    batch: Batch

    @property
    def samples(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Work:
    """One worker's part of a global batch, and what every worker must know of it.

    `passes` may be empty: a worker without samples still takes part. `learning_rates` has one entry for each
    parameter group of the optimizer. `stop` says that this worker was asked to stop.
    """

    batch: GlobalBatch
    passes: Sequence[Pass]
    learning_rates: tuple[float, ...]
    stop: bool = False
    data_s: float = 0.0


@dataclass(frozen=True)
class StepResult:
    """What a step did. `committed` are the samples of this worker whose effect is now in the common model: those of
    this step, none (a local step that is not yet shared), or those of many (the step that shares them).
    `loss_sum` and `loss_weight` are the group's; `stop` is what the group agreed on."""

    loss_sum: float
    loss_weight: float
    committed: npt.NDArray[np.int64]
    stop: bool = False
    timings: tuple[Mapping[str, float], ...] = ()
    bytes_sent: int = 0  # by this worker

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

    def share(self, batch: GlobalBatch, world: World, weights: Sequence[float]) -> tuple[Grain, ...]:
        """The grains whose samples this worker must be given. Pure. The default divides the batch."""
        return batch.share(world.rank, weights)

    def close(self, replica: ReplicaT) -> None:
        """Give back what the replica holds. Not collective; may be called twice."""
