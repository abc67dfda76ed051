"""Draws by sample in a pass: PyTorch's own everywhere else, the same in a second forward, and never a silent guess."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import shoal.strategies.drawing as drawing
from shoal.core.errors import ConfigError
from shoal.core.seeds import step_seed
from shoal.strategies.drawing import COMMON, OUTSIDE, DrawRules, SampleDrawing
from shoal.testing.plan import Plan
from shoal.testing.reference import _dropout_by_sample

pytestmark = pytest.mark.unit
SAMPLES = np.array([4, 19, 7, 23, 11, 2])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.3))


def run(model: nn.Module, rules: DrawRules, given: Tensor, samples: object = SAMPLES, seed: int = 7) -> Tensor:
    with SampleDrawing(model, rules).forward(np.asarray(samples), seed):
        out: Tensor = model(given)
        return out


RULE = DrawRules({("1", 2): 0})


def test_a_pass_over_some_samples_is_a_part_of_the_pass_over_all() -> None:
    model, given = network(), torch.randn(6, 5)
    whole = run(model, RULE, given)
    order = [5, 2, 0]
    some = run(model, RULE, given[order], SAMPLES[order])
    assert torch.allclose(some, whole[order])
    assert torch.equal(some == 0, whole[order] == 0)
    assert not torch.equal(run(model, RULE, given, seed=8), whole)
    assert not torch.equal(run(model, RULE, given, SAMPLES[::-1]), whole)


@pytest.mark.parametrize(
    ("dim", "shape"), [(0, (6, 3, 4)), (1, (3, 6, 4)), (2, (3, 4, 6)), (0, (12, 4)), (1, (4, 18)), (0, (6,))]
)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_the_dimension_of_samples_may_be_any(dim: int, shape: tuple[int, ...], kind: torch.dtype) -> None:
    model, rules = nn.Dropout(0.4), DrawRules({("", len(shape)): dim})
    given = torch.ones(shape, dtype=kind)
    whole = run(model, rules, given)
    each = shape[dim] // 6
    for at in range(6):
        alone = run(model, rules, given.narrow(dim, at * each, each), SAMPLES[at : at + 1])
        assert torch.equal(alone, whole.narrow(dim, at * each, each))
    assert whole.dtype == kind
    assert 0 < int((whole == 0).sum()) < whole.numel()


def test_memory_order_leaves_no_trace() -> None:
    model, rules, given = nn.Dropout(0.4), DrawRules({("", 4): 0}), torch.ones(6, 3, 4, 4)
    by_pixel = run(model, rules, given.to(memory_format=torch.channels_last))
    assert torch.equal(by_pixel, run(model, rules, given))


def test_what_does_not_grow_with_samples_is_the_same_for_all_passes_of_a_step() -> None:
    model, rules = nn.Dropout(0.5), DrawRules({("", 1): COMMON})
    given = torch.ones(40)
    assert torch.equal(run(model, rules, given), run(model, rules, given, SAMPLES[:2]))
    assert not torch.equal(run(model, rules, given), run(model, rules, given, seed=8))


def test_each_call_draws_anew() -> None:
    model = nn.Dropout(0.5)
    with SampleDrawing(model, DrawRules({("", 2): 0})).forward(SAMPLES, 7):
        assert not torch.equal(model(torch.ones(6, 50)), model(torch.ones(6, 50)))


class _Again(nn.Module):
    """Runs again in backward what it has run in forward, from a function and from a module."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.entry, self.inner, self.recompute = nn.Linear(5, 5), network(), recompute

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.entry(given)
        for part in (lambda x: F.dropout(x, 0.4) * x, self.inner, lambda x: F.dropout(x, 0.2).tanh()):
            hidden = checkpoint(part, hidden, use_reentrant=False) if self.recompute else part(hidden)
        return F.dropout(hidden, 0.1)


def test_a_second_forward_in_backward_draws_the_same() -> None:
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = _Again(recompute)
        found = SampleDrawing(model, DrawRules({("", 2): 0, ("inner.1", 2): 0}))
        for _ in range(2):
            model.zero_grad()
            with found.forward(SAMPLES, 7):
                loss = model(torch.ones(6, 5)).square().sum()
            with found.backward():
                loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda model: F.dropout(torch.ones(6, 5, 2), 0.5), r"the loss draws numbers of shape \[6, 5, 2\] for 6"),
        (lambda model: model[1](torch.ones(8, 5)), r"1 draws numbers of shape \[8, 5\] for 6 samples"),
        (lambda model: torch.randn(6), "draws random numbers of its own"),
        (lambda model: torch.randperm(6), "draws random numbers of its own"),
    ],
)
def test_what_the_trial_has_not_shown_is_an_error(draw: Callable[[nn.Module], Tensor], words: str) -> None:
    model = network()
    with pytest.raises(ConfigError, match=words) as raised, SampleDrawing(model, RULE).forward(SAMPLES, 7):
        draw(model)
    assert "draws=grain" in str(raised.value)


def test_a_model_that_did_not_draw_in_the_trial_must_not_draw() -> None:
    model = nn.Sequential(nn.Linear(5, 5))
    found = SampleDrawing(model, DrawRules({}))
    with found.forward(SAMPLES, 7):
        model(torch.ones(6, 5))
    with pytest.raises(ConfigError, match="the model draws random numbers of its own"), found.forward(SAMPLES, 7):
        F.dropout(model(torch.ones(6, 5)), 0.5)


def test_generators_of_ones_own_are_left_alone() -> None:
    own, again = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    model = network()
    expected = torch.rand(6, generator=own)
    with SampleDrawing(model, RULE).forward(SAMPLES, 7):
        assert torch.equal(torch.rand(6, generator=again), expected)


def _plain() -> list[Tensor]:
    torch.manual_seed(5)
    return [
        F.dropout(torch.ones(50), 0.5),
        torch.rand(50),
        torch.empty(50).uniform_(2, 3),
        torch.bernoulli(torch.rand(9)),
    ]


def test_outside_a_pass_pytorch_draws_as_ever() -> None:
    expected = _plain()
    held = SampleDrawing(network(), RULE)
    assert all(torch.equal(a, b) for a, b in zip(_plain(), expected, strict=True))
    found: list[Tensor] = []
    with drawing.asked(held):
        other = threading.Thread(target=lambda: found.extend(_plain()))
        other.start()
        other.join(timeout=30)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), "another thread is not in the pass"
    del held
    gc.collect()
    assert drawing._replaced[0]() is None, "the kernels are not given back"
    assert all(torch.equal(a, b) for a, b in zip(_plain(), expected, strict=True))


def test_uniform_numbers_of_another_range() -> None:
    with SampleDrawing(nn.Identity(), DrawRules({(OUTSIDE, 2): 0})).forward(SAMPLES, 7):
        drawn = torch.empty(6, 2000).uniform_(-2, 4)
    assert abs(float(drawn.mean()) - 1) < 0.1
    assert -2 <= float(drawn.min()) < -1.9
    assert 3.9 < float(drawn.max()) <= 4


def test_the_oracle_works_out_the_same_masks() -> None:
    plan, model, given = Plan("gpt"), nn.Dropout(0.1), torch.ones(6, 7, 10)
    with _dropout_by_sample(plan, 12, torch.from_numpy(SAMPLES)):
        expected = [model(given), model(given)]
    found = SampleDrawing(model, DrawRules({("", 3): 0}))
    with found.forward(SAMPLES, step_seed(plan.seed, 12)):
        assert all(torch.equal(model(given), one) for one in expected)


@pytest.mark.parametrize("shape", [(4096, 128), (4, 12, 128, 128)])
def test_it_is_as_quick_as_pytorch(shape: tuple[int, ...]) -> None:
    """It is several times quicker (on the machines we have tried): a bound for what no busy machine can excuse."""
    model, given = nn.Dropout(0.1), torch.ones(shape)
    samples = np.arange(shape[0])
    found = SampleDrawing(model, DrawRules({("", len(shape)): 0}))

    def seconds(run: Callable[[], object]) -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    def by_sample() -> None:
        with found.forward(samples, 7):
            model(given)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pairs = [(seconds(by_sample), seconds(lambda: model(given))) for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    assert min(own for own, _ in pairs) < 2 * min(native for _, native in pairs)
