"""Training a plan on one rank, with everything written down that a check may want to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from shoal.core.config import HybridSettings, ServerSettings, resolve
from shoal.core.cursor import GlobalBatch
from shoal.core.errors import NonFiniteLoss
from shoal.core.grains import Grain
from shoal.core.state import Piece, ShardedState
from shoal.core.world import World
from shoal.data.source import open_source
from shoal.launch.session import Session
from shoal.strategies.base import Runtime, StepResult, Strategy, Sums, Work
from shoal.strategies.objective import Batch, make_objective
from shoal.strategies.program import Program
from shoal.strategies.select import choose_strategy
from shoal.testing.plan import RULES, Plan
from shoal.train.metrics import with_defaults
from shoal.train.run import Run
from shoal.train.spec import RunSpec

StrategyChoice = str | Callable[[], Strategy[Any]]
State = dict[str, Piece]


@dataclass(frozen=True)
class Failure:
    """A `NonFiniteLoss`, and the state right before and right after the step that raised it."""

    step: int
    ranks: tuple[int, ...]
    before: State
    after: State


@dataclass
class RankRecord:
    """What one rank saw of a run."""

    losses: list[float] = field(default_factory=list)
    rates: list[tuple[float, ...]] = field(default_factory=list)
    committed: list[npt.NDArray[np.int64]] = field(default_factory=list)  # by step
    epochs: list[int] = field(default_factory=list)  # of each step
    passed: int = 0  # samples that went through the model
    state: State = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)  # the model's own parameters and buffers on this rank
    summary: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    first_step: int = 0
    hooks_left: int = 0  # on the user's model, after the run
    afterwards: dict[str, Tensor] = field(default_factory=dict)  # parameters after one more step in plain PyTorch


class Recording(Strategy[Any]):
    """Passes everything on to another strategy and keeps hold of its replica."""

    name = "recording"

    def __init__(self, inner: Strategy[Any]) -> None:
        self.inner = inner
        self.record = RankRecord()
        self.replica: Any = None
        self.name = inner.name  # type: ignore[misc]  # it stands for the other
        self.needs = inner.needs  # type: ignore[misc]

    def bind(self, program: Program, runtime: Runtime) -> Any:
        self.replica = self.inner.bind(program, runtime)
        return self.replica

    def step(self, replica: Any, work: Work) -> StepResult:
        result = self.inner.step(replica, work)
        self.record.rates.append(work.learning_rates)
        self.record.committed.append(np.array(result.committed))
        self.record.epochs.append(work.batch.cursor.epoch)
        self.record.passed += sum(one.samples for one in work.passes)
        return result

    def reach(self, replica: Any) -> int:
        return self.inner.reach(replica)

    def evaluate(self, replica: Any, batch: Batch) -> Sums:
        return self.inner.evaluate(replica, batch)

    def state(self, replica: Any) -> ShardedState:
        return self.inner.state(replica)

    def load(self, replica: Any, state: ShardedState) -> None:
        self.inner.load(replica, state)

    def initial_learning_rates(self, replica: Any) -> tuple[float, ...]:
        return self.inner.initial_learning_rates(replica)

    def share(self, batch: GlobalBatch, world: World, weights: Sequence[float]) -> tuple[Grain, ...]:
        return self.inner.share(batch, world, weights)

    def discard(self, replica: Any) -> None:
        self.inner.discard(replica)

    def reconfigure(self, replica: Any, program: Program, runtime: Runtime) -> Any:
        self.replica = self.inner.reconfigure(replica, program, runtime)
        return self.replica

    def live_state(self, replica: Any) -> ShardedState:
        return self.inner.live_state(replica)

    def close(self, replica: Any) -> None:
        self.inner.close(replica)

    def copy_of_state(self) -> State:
        pieces = self.state(self.replica).pieces
        return {name: Piece(p.tensor.detach().clone(), p.shape, p.offset) for name, p in pieces.items()}


@dataclass(frozen=True)
class Order:
    """One training as a rank is told to do it. `how` are the settings that must not change the result.

    `until` ends the run after so many steps of it, with one more batch in hand that is not trained on. `poison` makes
    this sample of the training data not a number.
    """

    plan: Plan
    strategy: StrategyChoice
    directory: str
    how: Mapping[str, Any] = field(default_factory=dict)
    until: int | None = None
    poison: int | None = None


def train(session: Session, order: Order) -> RankRecord:
    """Carry out `order` as one of the session's workers. Collective."""
    strategy = Recording(_choose(order, session.world.size))
    record = strategy.record
    spec = _spec(order, strategy, session.world.size)
    model = spec.program.model
    run = Run(spec, session, session.next_fit())
    record.first_step = run.cursor.step
    watching = order.poison is not None
    try:
        for work in run.works():
            if order.until is not None and len(record.losses) == order.until:
                break
            before = strategy.copy_of_state() if watching else {}
            try:
                record.losses.append(run.step(work))
            except NonFiniteLoss as error:
                record.failure = Failure(error.step, error.ranks, before, strategy.copy_of_state())
                raise
        record.state = strategy.copy_of_state()
        record.summary = run.finish()
    except NonFiniteLoss as error:
        run.fail(error)
    record.held = _copies(model)
    record.hooks_left = count_hooks(model)
    if order.plan.precision == "float32" and record.failure is None:
        step_in_plain_pytorch(model, order.plan)
        record.afterwards = _copies(model)
    return record


def _copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def count_hooks(model: nn.Module) -> int:
    """How many hooks hang on a model's modules and parameters."""
    of_modules = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    of_parameters = ("_backward_hooks", "_post_accumulate_grad_hooks")
    on_modules = sum(len(getattr(module, kind)) for module in model.modules() for kind in of_modules)
    return on_modules + sum(len(getattr(p, kind) or ()) for p in model.parameters() for kind in of_parameters)


def step_in_plain_pytorch(model: nn.Module, plan: Plan) -> None:
    """One step on a few samples with a new optimizer, as anyone would go on with a trained model."""
    batch = tuple(tensor[:8] for tensor in plan.what.train(plan.samples))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    optimizer.zero_grad()
    model.eval()  # without draws
    total = make_objective(plan.what.loss)(model, batch).total
    total.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def train_all(session: Session, orders: Sequence[Order]) -> list[RankRecord]:
    """One after the other, in the same processes."""
    return [train(session, order) for order in orders]


def _choose(order: Order, workers: int) -> Strategy[Any]:
    if not isinstance(order.strategy, str):
        return order.strategy()
    hybrid = {key.removeprefix("hybrid."): value for key, value in order.how.items() if key.startswith("hybrid.")}
    server = {key.removeprefix("server."): value for key, value in order.how.items() if key.startswith("server.")}
    return choose_strategy(order.strategy, workers, HybridSettings(**hybrid), ServerSettings(**server))


def _spec(order: Order, strategy: Strategy[Any], workers: int) -> RunSpec:
    plan, subject = order.plan, order.plan.what
    what = {
        "global_batch": plan.global_batch, "epochs": plan.epochs, "seed": plan.seed, "clip": plan.clip,
        "precision": plan.precision, "grain": plan.grain, "statistics": plan.statistics,
    }  # fmt: skip
    quiet = {
        "eval_every": f"{plan.epochs} epochs", "eval_batch": 64, "checkpoint.every": "never", "comm.timeout_s": 30.0,
    }  # fmt: skip
    directed = {"run_dir": str(Path(order.directory)), "workers": workers, "strategy": strategy.name}
    config = resolve(("the plan", what), ("the check", quiet), ("the run", {**directed, **order.how}))
    data = subject.train(plan.samples)
    if order.poison is not None:
        data = _poisoned(data, order.poison)
    program = Program(
        subject.model(), make_objective(subject.loss), plan.make_optimizer, with_defaults(subject.loss, subject.metrics)
    )
    return RunSpec(
        config=config,
        program=program,
        strategy=strategy,
        train=open_source(data, "train"),
        test=open_source(subject.test(plan.test_samples), "test"),
        schedule=RULES[plan.schedule].given,
    )


def _poisoned(data: tuple[Tensor, ...], sample: int) -> tuple[Tensor, ...]:
    inputs = data[0].clone()
    assert inputs.is_floating_point(), "only numbers can be not a number"
    inputs[sample] = torch.nan
    return (inputs, *data[1:])
