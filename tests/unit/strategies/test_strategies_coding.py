"""`allreduce` with codecs, on one worker and its twin: a group without processes whose members do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal.strategies.coding
from shoal.comm.codecs.choose import CodecChoice
from shoal.comm.control import ControlPage
from shoal.comm.group import BucketReducer, BucketSpec, Group
from shoal.comm.solo import SoloGroup
from shoal.core.cursor import Batches, Cursor
from shoal.core.errors import ConfigError, PeerLost
from shoal.core.order import epoch_order
from shoal.core.world import View, World
from shoal.strategies.allreduce import AllReduce, AllReduceReplica
from shoal.strategies.base import Pass, Runtime, Work
from shoal.strategies.coding import Coding
from shoal.strategies.objective import make_objective
from shoal.strategies.program import Program
from shoal.testing.plan import Plan
from shoal.testing.trial import same_bits

pytestmark = pytest.mark.unit

RESIDUAL = "residual."


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Twins(Group):
    """Two members that hold the same. `broken`: the other one is lost in the next operation."""

    def __init__(self, backend: str = "twins") -> None:
        self.rank, self.size, self.backend = 0, 2, backend
        self.broken = False

    def all_reduce(self, tensor: Tensor, what: str) -> None:
        self._meet()
        tensor.mul_(2)

    def broadcast(self, tensor: Tensor, source: int, what: str) -> None:
        self._meet()

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        self._meet()
        return [payload, payload]

    def _meet(self) -> None:
        if self.broken:
            raise PeerLost("the twin is lost")

    def reducer(self, buckets: Any, facts: int) -> BucketReducer:
        return _TwinReducer(self, buckets)

    def close(self) -> None:
        pass


class _TwinReducer(BucketReducer):
    """Sums without a codec: the mean of two twins is each of them."""

    def __init__(self, group: Twins, buckets: list[BucketSpec]) -> None:
        self._group, self._specs = group, buckets
        self.buffers = [torch.zeros(spec.numel, dtype=spec.dtype) for spec in buckets]

    def open(self, weight: float) -> None:
        self._weight = weight

    def ready(self, bucket: int) -> None:
        self.buffers[bucket].mul_(1 / self._weight if self._specs[bucket].divided else 2)

    def finish(self, facts: Tensor) -> Tensor:
        self._group._meet()
        return torch.stack([facts, facts])


@pytest.fixture
def runtime() -> Iterator[Callable[..., Runtime]]:
    control = ControlPage()

    def make(codec: str, group: Group, **more: Any) -> Runtime:
        world = World(rank=0, size=group.size, device=more.pop("device", "cpu"))
        return Runtime(world, View(1, ()), group, control, seed=1, alike=True, codec=codec, **more)

    yield make
    control.close()


SUBJECT = Plan("mlp", samples=203)


def bound(runtime: Runtime) -> AllReduceReplica:
    subject = SUBJECT.what
    return AllReduce().bind(Program(subject.model(), make_objective(subject.loss), SUBJECT.make_optimizer), runtime)


def work(step: int) -> Work:
    """A batch of 50, all of it this worker's, then one of 3."""
    batches = Batches(SUBJECT.samples, 50, 1)
    batch = batches.at(Cursor(step=step, batch=step % batches.per_epoch))
    indices = epoch_order(1, 0, SUBJECT.samples)[batch.start : batch.stop]
    data = tuple(tensor[torch.from_numpy(indices.copy())] for tensor in SUBJECT.what.train(SUBJECT.samples))
    return Work(batch, [Pass(batch.grains, indices, data)], (0.05,))


def copy_of(replica: AllReduceReplica) -> dict[str, Tensor]:
    """All that a step may change: parameters, optimizer, residuals."""
    state = AllReduce().state(replica)
    return {name: piece.tensor.detach().clone() for name, piece in state.pieces.items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(same_bits(first[name], second[name]) for name in first)


def check_broken_off(runtime: Callable[..., Runtime], codec: str) -> None:
    """A step that is broken off, and done again in another view, is a step that was done once."""
    strategy, calm = AllReduce(), bound(runtime(codec, Twins()))
    for step in range(6):
        strategy.step(calm, work(step))
    hurt, group = bound(runtime(codec, Twins())), Twins()
    strategy.reconfigure(hurt, hurt.program, runtime(codec, group))
    for step in range(6):
        if step in (0, 3, 4):
            before = copy_of(hurt)
            group.broken = True
            with pytest.raises(PeerLost):
                strategy.step(hurt, work(step))
            strategy.discard(hurt)
            group = Twins()
            strategy.reconfigure(hurt, hurt.program, runtime(codec, group))
            assert equal(copy_of(hurt), before), f"a step that was broken off changed something ({codec})"
        strategy.step(hurt, work(step))
    assert any(tensor.any() for name, tensor in copy_of(calm).items() if name.startswith(RESIDUAL))
    assert equal(copy_of(hurt), copy_of(calm)), f"a step that was done again is another one ({codec})"


@pytest.mark.parametrize("codec", ["bf16", "int8", "topk:0.1", "powersgd:2"])
def test_a_step_that_is_broken_off_leaves_residuals_as_they_were(runtime: Callable[..., Runtime], codec: str) -> None:
    check_broken_off(runtime, codec)


@pytest.mark.mutation
def test_a_residual_of_a_broken_step_is_seen(runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coding, "discard", Coding.commit)
    with pytest.raises(AssertionError, match="broken off changed something"):
        check_broken_off(runtime, "topk:0.1")


def test_who_takes_over_the_state_of_another_has_no_residual(runtime: Callable[..., Runtime]) -> None:
    """It may have been part of the step that it missed: it must not be sent again."""
    strategy, replica = AllReduce(), bound(runtime("topk:0.1", Twins()))
    for step in range(3):
        strategy.step(replica, work(step))
    live = strategy.live_state(replica)
    assert not any(name.startswith(RESIDUAL) for name in live.pieces)
    strategy.load(replica, live)
    assert not any(tensor.any() for name, tensor in copy_of(replica).items() if name.startswith(RESIDUAL))


def test_the_first_worker_alone_goes_on_with_the_residuals_of_all(runtime: Callable[..., Runtime]) -> None:
    strategy, replica = AllReduce(), bound(runtime("topk:0.1", Twins()))
    for step in range(3):
        strategy.step(replica, work(step))
    state = strategy.state(replica)
    saved = copy_of(replica)
    alone = bound(runtime("topk:0.1", SoloGroup()))
    strategy.load(alone, state)
    assert equal(copy_of(alone), saved)
    second = runtime("topk:0.1", SoloGroup())
    other = bound(replace(second, world=replace(second.world, rank=1)))
    strategy.load(other, state)
    assert not any(piece.tensor.any() for piece in other.residuals().values())


def test_bytes_are_those_of_the_payloads(runtime: Callable[..., Runtime]) -> None:
    strategy = AllReduce()
    sent = {}
    for codec in ("none", "bf16", "topk:0.1"):
        replica = bound(runtime(codec, Twins()))
        sent[codec] = strategy.step(replica, work(0)).bytes_sent
    numel = sum(p.numel() for p in SUBJECT.what.model().parameters())
    facts = 8 * 64  # some numbers that travel with every step
    assert sent["none"] == 4 * numel
    assert 2 * numel <= sent["bf16"] <= 2 * numel + facts
    assert 0.8 * numel <= sent["topk:0.1"] <= 0.8 * numel + facts


def test_a_choice_is_kept_in_the_next_view_and_told_to_newcomers(
    runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shoal.strategies.coding, "choose", lambda measured, workers: CodecChoice("int8", "it is", {"none": 1.0})
    )
    strategy, replica = AllReduce(), bound(runtime("auto", Twins()))
    for step in range(5):
        assert replica.codec_choice is None
        strategy.step(replica, work(step))
    result = strategy.step(replica, work(5))
    assert replica.codec_choice == CodecChoice("int8", "it is", {"none": 1.0})
    assert result.bytes_sent == replica.bytes_per_step < 2 * sum(p.nbytes for p in SUBJECT.what.model().parameters())
    residuals = {name: t for name, t in copy_of(replica).items() if name.startswith(RESIDUAL)}
    strategy.reconfigure(replica, replica.program, runtime("auto", Twins()))
    assert replica.codec_choice is not None
    assert equal({name: t for name, t in copy_of(replica).items() if name.startswith(RESIDUAL)}, residuals)
    strategy.reconfigure(replica, replica.program, runtime("auto", Twins("another kind of link")))
    assert replica.codec_choice is None, "what was measured on another kind of link says nothing about this one"
    strategy.step(replica, work(6))


class Newcomer(Twins):
    """The other member was there before, and has chosen."""

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        told = b'{"choice": {"name": "int8", "reason": "it is", "predicted_s": {}}, "backend": "twins"}'
        return [payload, told if what == "agreeing on a codec" else payload]


def test_a_newcomer_does_as_the_others_have_chosen(runtime: Callable[..., Runtime]) -> None:
    replica = bound(runtime("auto", Newcomer()))
    assert replica.codec_choice is not None
    assert replica.codec_choice.name == "int8"
    assert AllReduce().step(replica, work(0)).bytes_sent < sum(p.nbytes for p in replica.module.parameters())


def test_a_parameter_that_nobody_used_is_left_alone_unless_something_is_owed_to_it(
    runtime: Callable[..., Runtime],
) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.rest = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + (self.rest(x) if x.sum() > 1e4 else 0.0)

    program = Program(Half(), make_objective(nn.CrossEntropyLoss()), lambda ps: torch.optim.SGD(ps, lr=0.1))
    replica = AllReduce().bind(program, runtime("topk:0.05", Twins()))
    batch = Batches(8, 8, 1).at(Cursor())
    indices = epoch_order(1, 0, 8)

    def step(scale: float) -> None:
        data = (torch.arange(32.0).view(8, 4) * scale, torch.arange(8) % 3)
        AllReduce().step(replica, Work(batch, [Pass(batch.grains, indices, data)], (0.1,)))

    step(1.0)
    assert replica.module.rest.weight.grad is None  # type: ignore[union-attr]
    step(1000.0)
    step(1e-6)
    assert replica.module.rest.weight.grad is not None  # type: ignore[union-attr]


def test_codecs_are_refused_where_they_cannot_work(runtime: Callable[..., Runtime]) -> None:
    with pytest.raises(ConfigError, match="is not a codec: did you mean 'powersgd'"):
        Coding("powersdg", "cpu")
    with pytest.raises(ConfigError, match="works in host memory, and device=cuda:0"):
        Coding("bf16", "cuda:0")
    Coding("none", "cuda:0")
