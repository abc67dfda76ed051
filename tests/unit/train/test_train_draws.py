"""Which draws can be told apart by sample, how that is found out, and which module is to blame where they cannot."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal.strategies.drawing as drawing
from shoal.strategies.drawing import COMMON, OUTSIDE, DrawRules
from shoal.strategies.objective import make_objective
from shoal.train.cutting import Look, look_at
from shoal.train.draws import Few

pytestmark = pytest.mark.unit


def look(model: nn.Module, loss: object = None, sizes: tuple[int, ...] = (2, 3)) -> Look:
    count = sum(sizes)
    generator = torch.Generator().manual_seed(0)
    given, wanted = torch.randn(count, 6, 8, generator=generator), torch.randn(count, 6, 8, generator=generator)
    borders = [0, *np.cumsum(sizes)]
    both, *parts = (
        Few(np.arange(a, b), (given[a:b], wanted[a:b])) for a, b in ((0, count), *itertools.pairwise(borders))
    )
    return look_at(model, make_objective(loss or nn.MSELoss()), parts, both)  # type: ignore[arg-type]


class Does(nn.Module):
    """A layer, and then something of the test's own."""

    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.entry, self.what = nn.Linear(8, 8), what

    def forward(self, given: Tensor) -> Tensor:
        return self.what(self.entry(given))


class Attention(nn.Module):
    def __init__(self, batch_first: bool, weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=batch_first)
        self.batch_first, self.weights = batch_first, weights

    def forward(self, given: Tensor) -> Tensor:
        given = given if self.batch_first else given.transpose(0, 1)
        out: Tensor = self.inner(given, given, given, need_weights=self.weights)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True)

    def forward(self, given: Tensor) -> Tensor:
        out: Tensor = self.cells(given)[0]
        return out


def after_linear(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), *layers)


def drop_path_by_bernoulli(x: Tensor, keep: float = 0.7) -> Tensor:
    return x / keep * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)


def drop_path_by_floor(x: Tensor, keep: float = 0.7) -> Tensor:
    return x / keep * (keep + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1))).floor_()


TOLD_APART: dict[str, tuple[nn.Module, dict[tuple[str, int], int]]] = {
    "dropout": (after_linear(nn.Dropout(0.1)), {("1", 3): 0}),
    "in place": (after_linear(nn.Dropout(0.1, inplace=True)), {("1", 3): 0}),
    "alpha": (after_linear(nn.AlphaDropout(0.2)), {("1", 3): 0}),
    "feature alpha": (after_linear(nn.FeatureAlphaDropout(0.2)), {("1", 3): 0}),
    "channels": (after_linear(nn.Dropout1d(0.3)), {("1", 3): 0}),
    "function": (Does(lambda x: F.dropout(x, 0.3)), {("", 3): 0}),
    "of torch": (Does(lambda x: torch.dropout(x, 0.3, True)), {("", 3): 0}),
    "attention": (Does(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.2)), {("", 3): 0}),
    "heads, time first": (Attention(False, True), {("inner", 3): 0}),
    "heads": (Attention(True, True), {("inner", 3): 0}),
    "heads without weights": (Attention(True, False), {("inner", 4): 0}),
    "drop path": (Does(drop_path_by_bernoulli), {("", 3): 0}),
    "drop path by floor": (Does(drop_path_by_floor), {("", 3): 0}),
    "flattened": (Does(lambda x: F.dropout(x.flatten(0, 1), 0.3).view(x.shape)), {("", 2): 0}),
    "time first": (Does(lambda x: F.dropout(x.transpose(0, 1), 0.3).transpose(0, 1)), {("", 3): 1}),
    "samples last": (Does(lambda x: F.dropout(x.permute(1, 2, 0), 0.3).permute(2, 0, 1)), {("", 3): 2}),
    "a layer left out for all": (Does(lambda x: x * (torch.rand([]) + 0.1)), {("", 0): COMMON}),
    "a transformer": (
        nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True),
        {("self_attn", 4): 0, ("dropout1", 3): 0, ("dropout", 3): 0, ("dropout2", 3): 0},
    ),
}


@pytest.mark.parametrize("name", TOLD_APART)
def test_dropout_and_its_kin_are_told_apart(name: str) -> None:
    model, dims = TOLD_APART[name]
    found = look(model)
    assert found.separate is None
    assert found.draws == DrawRules(dims)


def test_noise_on_weights_is_the_same_for_all_samples() -> None:
    assert look(Does(lambda x: x * (1 + torch.randn(8)))) == Look(None, DrawRules({}, alone=False))


def test_a_loss_may_draw_too() -> None:
    found = look(after_linear(), lambda model, batch: F.dropout((model(batch[0]) - batch[1]).square(), 0.3).mean())
    assert found == Look(None, DrawRules({(OUTSIDE, 3): 0}))


CANNOT: dict[str, tuple[nn.Module, str]] = {
    "recurrent": (Recurrent(), r"cells \(LSTM\) draws within its layers \(dropout\), which cannot be told apart"),
    "noise": (after_linear(nn.ReLU(), Does(lambda x: x + torch.randn_like(x))), r"2 \(Does\) draws .* of its own"),
    "mixing": (after_linear(Does(lambda x: x + x[torch.randperm(len(x))])), r"1 \(Does\) draws .* of its own"),
    "slopes": (after_linear(nn.RReLU()), r"1 \(RReLU\) draws random numbers of its own"),
    "pairs": (
        Does(lambda x: (F.dropout(x.flatten(1) @ x.flatten(1).T, 0.3) @ x.flatten(1)).view(x.shape)),
        r"the model \(Does\) draws random numbers of shape \[5, 5\] for 5 samples, which cannot be told apart",
    ),
    "sorted": (
        after_linear(Does(lambda x: F.dropout(x[x.sum((1, 2)).argsort()], 0.5))),
        r"1 \(Does\) draws random numbers, which cannot be told apart by sample|not the sum",
    ),
    "sample by sample": (
        Does(lambda x: torch.stack([F.dropout(one, 0.3) for one in x])),
        "the number of its draws depends on its batch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_told_apart_is_blamed_on_its_module(name: str) -> None:
    model, words = CANNOT[name]
    found = look(model)
    assert found.draws is None
    assert found.separate is not None
    assert re.search(words, found.separate), found.separate


def test_batch_normalisation_keeps_grains_and_dropout_is_told_apart_all_the_same() -> None:
    found = look(nn.Sequential(nn.Conv1d(6, 6, 1), nn.BatchNorm1d(6), nn.Dropout(0.3)))
    assert found == Look("1 (BatchNorm1d) looks at its batch", DrawRules({("2", 3): 0}), normed=True)


def test_one_sample_tells_nothing() -> None:
    found = look(after_linear(nn.Dropout(0.1)), sizes=(1,))
    assert found.draws is None
    assert found.separate == "the model draws random numbers, and there is one sample to try"


def test_an_older_pytorch_keeps_grains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel")
    found = look(after_linear(nn.Dropout(0.1)))
    assert found.draws is None
    assert "older than" in str(found.separate)
    assert look(after_linear()) == Look(None, None)


def test_a_wrong_rule_does_not_stand_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks that belong to places in a pass, and not to samples, are found out by the trial itself."""
    original = drawing.fill_by_sample
    monkeypatch.setattr(
        drawing, "fill_by_sample", lambda view, call, samples, keep: original(view, call, np.arange(len(samples)), keep)
    )
    found = look(after_linear(nn.Dropout(0.3)))
    assert found.draws is None
    assert re.search(r"1 \(Dropout\) draws random numbers, which cannot be told apart", str(found.separate))


def test_rules_travel_as_plain_values() -> None:
    rules = DrawRules({("a.b", 3): 1, ("", 2): COMMON}, alone=False)
    assert DrawRules.from_json(rules.to_json()) == rules
    assert DrawRules.from_json(None) is None


@pytest.mark.parametrize(("layer", "passes"), [(nn.Identity(), 3), (nn.Dropout(0.2), 5)], ids=["plain", "dropout"])
def test_a_trial_takes_few_passes(layer: nn.Module, passes: int) -> None:
    """Each of a large model costs seconds: both groups and each of them; where the model draws, two more to see how."""
    model = Does(layer)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda part, given: seen.append(len(given[0])))
    assert look(model).separate is None
    assert len(seen) == passes, seen
