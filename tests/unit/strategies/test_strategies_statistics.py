"""Batch normalisation over several workers is that of plain PyTorch over all samples: workers are threads here."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shoal.core.errors import ConfigError
from shoal.strategies.batch_statistics import BatchStatistics, combine
from shoal.strategies.buffers import RunningBuffers
from shoal.strategies.normalising import per_sample
from shoal.testing.models import Norms

pytestmark = pytest.mark.unit


@dataclass
class Meeting:
    """Where the threads of a group put what they gather."""

    size: int

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=20.0)
        self.rows: list[Any] = [None] * self.size


class ThreadGroup:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size, self._meeting = rank, meeting.size, meeting
        self.gathered = 0

    def start_gather(self, parts: Sequence[Tensor], own: Tensor, what: str) -> Callable[[], None]:
        def wait() -> None:
            self.gathered += 1
            self._meeting.rows[self.rank] = own.clone()
            self._meeting.barrier.wait()
            for part, row in zip(parts, self._meeting.rows, strict=True):
                part.copy_(row)
            self._meeting.barrier.wait()

        return wait


Loss = Callable[[nn.Module, Tensor], Tensor]


def squares(model: nn.Module, given: Tensor) -> Tensor:
    output: Tensor = model(given)
    weights = torch.linspace(0.5, 2.0, output.shape[1], dtype=output.dtype)
    return (output.transpose(1, -1) * weights).pow(3).sum() + output.square().sum()


def together(model: nn.Module, parts: Sequence[Tensor], loss: Loss = squares, steps: int = 2) -> tuple[Any, list[Any]]:
    """Gradients and buffers after some steps on the parts, added up as strategies do; and what each worker raised."""
    meeting = Meeting(len(parts))
    models = [copy.deepcopy(model) for _ in parts]
    buffers = [RunningBuffers(one) for one in models]
    totals = [torch.zeros(one.numel, dtype=torch.float64) for one in buffers]
    raised: list[Any] = [None] * len(parts)

    def work(rank: int) -> None:
        group = ThreadGroup(meeting, rank)
        view = SimpleNamespace(members=tuple(SimpleNamespace(rank=r) for r in range(len(parts))))
        runtime: Any = SimpleNamespace(view=view, subgroup=lambda part: group)
        try:
            statistics = BatchStatistics(models[rank], runtime)
            for _ in range(steps):
                buffers[rank].begin()
                statistics.begin()
                if len(parts[rank]):
                    buffers[rank].before_pass()
                    with statistics.shared(), statistics.checked():
                        total = loss(models[rank], parts[rank])
                    buffers[rank].after_pass(statistics.share(0.0))
                    with statistics.shared():
                        total.backward()  # type: ignore[no-untyped-call]
                    statistics.end()
                else:
                    statistics.attend()
                buffers[rank].changes(totals[rank])
                meeting.barrier.wait()
                change = torch.stack(totals).sum(dim=0)
                meeting.barrier.wait()
                buffers[rank].commit(change)
        except BaseException as error:
            raised[rank] = error
            if not isinstance(error, ConfigError):  # which all have
                meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    first = models[0]
    for name, parameter in first.named_parameters():
        others = [dict(one.named_parameters())[name].grad for one in models]
        grads = [grad for grad in others if grad is not None]
        parameter.grad = torch.stack(grads).sum(dim=0) if grads else None
    for one in models[1:]:
        for (name, mine), theirs in zip(first.named_buffers(), one.buffers(), strict=True):
            assert torch.equal(mine, theirs) or any(raised), f"{name} differs between workers"
    return first, raised


def alone(model: nn.Module, parts: Sequence[Tensor], loss: Loss = squares, steps: int = 2) -> nn.Module:
    model = copy.deepcopy(model)
    for _ in range(steps):
        loss(model, torch.cat(list(parts))).backward()  # type: ignore[no-untyped-call]
    return model


def check(
    model: nn.Module, parts: Sequence[Tensor], loss: Loss = squares, tolerance: float = 1e-9, buffers: bool = True
) -> None:
    found, raised = together(model, parts, loss)
    assert not any(raised), raised
    expected = alone(model, parts, loss)
    for (name, one), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if other.grad is not None:
            scale = max(float(other.grad.abs().max()), 0.01)
            assert float((one.grad - other.grad).abs().max()) <= tolerance * scale, name
    for (name, one), other in zip(found.named_buffers(), expected.buffers(), strict=True):
        assert not buffers or torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance), name


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 + 5


def cut(whole: Tensor, *sizes: int) -> list[Tensor]:
    return list(whole.split(list(sizes)))


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows": (lambda: nn.BatchNorm1d(3), ()),
    "sequences": (lambda: nn.BatchNorm1d(3), (5,)),
    "images": (lambda: nn.BatchNorm2d(3), (4, 4)),
    "volumes": (lambda: nn.BatchNorm3d(3), (2, 3, 2)),
    "without weights": (lambda: nn.BatchNorm2d(3, affine=False), (4, 4)),
    "cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (4, 4)),
    "untracked": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (4, 4)),
    "wider than the room": (lambda: nn.Sequential(nn.BatchNorm1d(3), _Functional()), ()),
}


class _Functional(nn.Module):
    """The user's own call of the function, with more channels than any layer has."""

    def forward(self, given: Tensor) -> Tensor:
        wide = torch.cat([given * (1 + at) for at in range(50)], dim=1)
        return F.batch_norm(wide, None, None, training=True).relu()


@pytest.mark.parametrize("kind", LAYERS)
def test_each_kind_of_layer(kind: str) -> None:
    build, shape = LAYERS[kind]
    torch.manual_seed(0)
    model = nn.Sequential(_first(3, len(shape)), build()).double()
    check(model, cut(drawn(11, 3, *shape), 4, 6, 1))


def _first(channels: int, dimensions: int) -> nn.Module:
    """Something with parameters before the layer, so that the gradient must go through it."""
    return (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions](channels, channels, *([1] if dimensions else []))


@pytest.mark.parametrize("sizes", [(9, 0), (0, 9), (3, 0, 6, 0), (1, 1, 7)])
def test_a_model_with_all_of_them_and_workers_without_samples(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    check(Norms().double(), cut(drawn(9, 1, 8, 8), *sizes), tolerance=1e-7)


def test_channels_last() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parts = cut(drawn(6, 3, 6, 6).contiguous(memory_format=torch.channels_last), 2, 4)
    check(model, parts)


def test_a_layer_on_the_input_itself_needs_no_exchange_backward() -> None:
    check(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).double(), cut(drawn(8, 3), 3, 5))


def test_parts_of_the_model_that_backward_runs_again() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()

    def loss(model: nn.Module, given: Tensor) -> Tensor:
        output: Tensor = checkpoint(model, given, use_reentrant=False)  # type: ignore[assignment]
        return output.square().sum()

    check(block, cut(drawn(8, 3), 3, 5), loss, buffers=False)  # PyTorch moves them twice, Shoal once


def test_some_samples_of_a_worker_only() -> None:
    """A selection that leaves a worker nothing at one of the layers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()

    def loss(model: nn.Module, given: Tensor) -> Tensor:
        chosen = given[given[:, 0] > 0]
        output: Tensor = model(chosen)
        return output.square().mul(torch.arange(3)).sum() + 0 * model[0].weight.sum()  # type: ignore[index, operator, union-attr]

    whole = drawn(8, 3)
    whole[:3, 0], whole[3:, 0] = -1.0, 1.0
    check(model, cut(whole, 3, 5), loss)


def test_bfloat16_is_near() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def loss(model: nn.Module, given: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return squares(model, given).float()

    check(model, cut(drawn(40, 3).float(), 13, 27), loss, tolerance=0.2)


def test_other_ways_for_other_samples_are_found_out() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3)).double()

    def loss(model: nn.Module, given: Tensor) -> Tensor:
        return squares(model[0] if len(given) == 3 else model, given)  # type: ignore[index]

    _, raised = together(model, cut(drawn(8, 3), 3, 5, 0), loss)
    assert all(isinstance(error, ConfigError) for error in raised)
    assert "worker 0 had done its last layer while worker 1 went forward through normalisation 2" in str(raised[2])


def test_one_value_has_no_variance() -> None:
    _, raised = together(nn.BatchNorm1d(3).double(), cut(drawn(1, 3), 1))
    assert isinstance(raised[0], ConfigError)
    assert "last batch of one sample" in str(raised[0])


def test_a_layer_that_goes_its_own_way_is_named() -> None:
    class Own(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            return input - input.mean(dim=0)

    _, raised = together(nn.Sequential(nn.Linear(3, 3), Own(3)).double(), cut(drawn(8, 3), 4, 4))
    assert "does not reach 1 (Own)" in str(raised[0])


def test_far_from_zero_nothing_cancels() -> None:
    values = np.random.default_rng(0).normal(1e6, 1e-3, size=(90, 2))
    parts = [values[:7], values[7:50], values[50:50], values[50:]]
    rows = np.array([[p.mean(axis=0), p.var(axis=0)] if len(p) else np.zeros((2, 2)) for p in parts])
    count, mean, total = combine([len(p) for p in parts], rows)
    assert count == 90
    assert np.allclose(mean, values.mean(axis=0), rtol=1e-15)
    assert np.allclose(total / 90, values.var(axis=0), rtol=1e-6)


def test_per_sample_normalises_each_sample_by_itself() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)).double()
    given = drawn(6, 3)
    with per_sample():
        assert torch.allclose(model(given), torch.cat([model(given[:2]), model(given[2:])]))
    assert not torch.allclose(model(given), torch.cat([model(given[:2]), model(given[2:])]))


def test_pytorch_is_left_as_it_was() -> None:
    before = F.batch_norm, torch.batch_norm
    with contextlib.suppress(KeyError), per_sample():
        with per_sample():
            nn.BatchNorm1d(3)(drawn(1, 3).float())  # of which plain batch normalisation takes no statistics
        nn.BatchNorm1d(3)(drawn(1, 3).float())
        raise KeyError
    assert (F.batch_norm, torch.batch_norm) == before
