"""A loss taken apart into sums and weights, over parts of any size, is PyTorch's own mean over the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError
from shoal.strategies.objective import batch_size, make_objective

pytestmark = pytest.mark.unit

SAMPLES, CLASSES = 23, 5
CUTS = [1, 7, 12, 3]  # parts of different sizes
Data = Callable[[torch.Generator], tuple[Tensor, Tensor]]


def _logits(g: torch.Generator) -> Tensor:
    return torch.randn(SAMPLES, CLASSES, generator=g)


def _classes(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return _logits(g), torch.randint(CLASSES, (SAMPLES,), generator=g)


def _masked(g: torch.Generator) -> tuple[Tensor, Tensor]:
    logits, target = _classes(g)
    target[::3] = -1
    target[8:12] = -1  # a part in which few count
    return logits, target


def _ignored_class(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return _classes(g)


def _probabilities(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return _logits(g), torch.rand(SAMPLES, CLASSES, generator=g).softmax(dim=1)


def _images(g: torch.Generator) -> tuple[Tensor, Tensor]:
    target = torch.randint(CLASSES, (SAMPLES, 3, 2), generator=g)
    target[:, 0] = torch.where(torch.rand(SAMPLES, 2, generator=g) < 0.5, -1, target[:, 0])
    return torch.randn(SAMPLES, CLASSES, 3, 2, generator=g), target


def _image_probabilities(g: torch.Generator) -> tuple[Tensor, Tensor]:
    logits = torch.randn(SAMPLES, CLASSES, 3, 2, generator=g)
    return logits, torch.rand(logits.shape, generator=g).softmax(dim=1)


def _log_probabilities(g: torch.Generator) -> tuple[Tensor, Tensor]:
    logits, target = _masked(g)
    return logits.log_softmax(dim=1), target


def _numbers(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 4, 3, generator=g), torch.randn(SAMPLES, 4, 3, generator=g)


def _fractions(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.rand(SAMPLES, 4, generator=g) * 0.9 + 0.05, torch.rand(SAMPLES, 4, generator=g)


def _signs(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 4, generator=g), torch.randint(2, (SAMPLES, 4), generator=g) * 2.0 - 1.0


def _flags(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 4, generator=g), torch.randint(2, (SAMPLES, 4), generator=g).float()


def _densities(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return _logits(g).log_softmax(dim=1), _logits(g).softmax(dim=1)


_WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0])

CASES: list[tuple[nn.Module, Data]] = [
    (nn.CrossEntropyLoss(), _classes),
    (nn.CrossEntropyLoss(ignore_index=-1), _masked),
    (nn.CrossEntropyLoss(ignore_index=2), _ignored_class),
    (nn.CrossEntropyLoss(weight=_WEIGHT), _classes),
    (nn.CrossEntropyLoss(weight=_WEIGHT, ignore_index=-1), _masked),
    (nn.CrossEntropyLoss(weight=_WEIGHT, ignore_index=2), _ignored_class),
    (nn.CrossEntropyLoss(label_smoothing=0.1), _classes),
    (nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=-1), _masked),
    (nn.CrossEntropyLoss(label_smoothing=0.1, weight=_WEIGHT), _classes),
    (nn.CrossEntropyLoss(label_smoothing=0.1, weight=_WEIGHT, ignore_index=2), _ignored_class),
    (nn.CrossEntropyLoss(), _probabilities),
    (nn.CrossEntropyLoss(weight=_WEIGHT, label_smoothing=0.2), _probabilities),
    (nn.CrossEntropyLoss(ignore_index=-1), _images),
    (nn.CrossEntropyLoss(weight=_WEIGHT, ignore_index=-1), _images),
    (nn.CrossEntropyLoss(), _image_probabilities),
    (nn.NLLLoss(ignore_index=-1), _log_probabilities),
    (nn.NLLLoss(weight=_WEIGHT, ignore_index=-1), _log_probabilities),
    (nn.MSELoss(), _numbers),
    (nn.L1Loss(), _numbers),
    (nn.SmoothL1Loss(beta=0.5), _numbers),
    (nn.HuberLoss(delta=0.7), _numbers),
    (nn.PoissonNLLLoss(), _fractions),
    (nn.BCELoss(), _fractions),
    (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0, 0.5])), _flags),
    (nn.SoftMarginLoss(), _signs),
    (nn.KLDivLoss(reduction="batchmean"), _densities),
    (nn.KLDivLoss(), _densities),
    (nn.MultiMarginLoss(), _classes),
    (nn.MultiLabelSoftMarginLoss(), _flags),
    (nn.HingeEmbeddingLoss(), _signs),
]


def _parts(data: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(torch.split(tensor, CUTS) for tensor in data), strict=True))


@pytest.mark.parametrize(("loss", "make"), CASES, ids=[f"{loss}-{make.__name__}" for loss, make in CASES])
@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
def test_sums_over_weights_are_the_mean_of_the_whole(loss: nn.Module, make: Data) -> None:
    output, target = make(torch.Generator().manual_seed(1))
    objective = make_objective(loss)
    scale = nn.Parameter(torch.ones(()))
    whole = loss(output * scale, target)
    (expected,) = torch.autograd.grad(whole, scale)

    total, gradient, weight = 0.0, 0.0, 0.0
    for part in _parts((output, target)):
        one = objective(_Scaled(scale), part)
        total += float(one.total.detach())
        gradient += float(torch.autograd.grad(one.total, scale)[0])
        weight += one.weight
    assert objective.divided
    assert total / weight == pytest.approx(float(whole.detach()), rel=2e-6)
    assert gradient / weight == pytest.approx(float(expected), rel=1e-5, abs=1e-7)


class _Scaled(nn.Module):
    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, output: Tensor) -> Tensor:
        return output * self.scale


def test_the_loss_of_the_user_is_not_changed() -> None:
    loss = nn.CrossEntropyLoss()
    make_objective(loss)
    assert loss.reduction == "mean"


def test_a_sum_stays_a_sum() -> None:
    objective = make_objective(nn.MSELoss(reduction="sum"))
    data = _numbers(torch.Generator().manual_seed(2))
    parts = [objective(nn.Identity(), part) for part in _parts(data)]
    assert not objective.divided
    assert [part.weight for part in parts] == [0.0] * len(parts)
    assert sum(float(part.total) for part in parts) == pytest.approx(
        float(nn.MSELoss(reduction="sum")(*data)), rel=1e-6
    )


def test_a_module_of_the_users_own_is_a_mean_over_samples() -> None:
    class Own(nn.Module):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return (output - target).abs().sqrt().mean()

    objective, data = make_objective(Own()), _numbers(torch.Generator().manual_seed(3))
    parts = [objective(nn.Identity(), part) for part in _parts(data)]
    mean = sum(float(part.total) for part in parts) / sum(part.weight for part in parts)
    assert mean == pytest.approx(float(Own()(*data)), rel=1e-6)


def test_a_function_gives_a_mean_over_samples_or_a_sum_and_a_weight() -> None:
    batch = (torch.arange(6.0), torch.zeros(6))
    mean = make_objective(lambda model, batch: batch[0].mean())(nn.Identity(), batch)
    assert (float(mean.total), mean.weight) == (15.0, 6.0)
    pair = make_objective(lambda model, batch: (batch[0].sum(), torch.tensor(4)))(nn.Identity(), batch)
    assert (float(pair.total), pair.weight) == (15.0, 4.0)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.MSELoss(reduction="none"), "reduction='none' gives no single loss"),
        (nn.functional.cross_entropy, r"give the module \(nn.CrossEntropyLoss\(\)"),
        (3, "give a loss module"),
    ],
)
def test_what_cannot_be_combined_is_refused(loss: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_objective(loss)


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    objective = make_objective(lambda model, batch: batch[0])
    with pytest.raises(ConfigError, match=r"a tensor of shape \(6,\), not one number"):
        objective(nn.Identity(), (torch.zeros(6),))


def test_data_without_targets_needs_a_function() -> None:
    with pytest.raises(ConfigError, match="give loss as a function"):
        make_objective(nn.MSELoss())(nn.Identity(), torch.zeros(3))


def test_the_size_of_a_batch() -> None:
    assert batch_size(torch.zeros(4, 2)) == 4
    assert batch_size({"text": ["a", "b", "c"], "b": torch.zeros(3)}) == 3
    assert batch_size([[torch.zeros(3)], "b"]) == 3
    assert (
        batch_size({"ragged": [torch.zeros(3), torch.zeros(4)], "b": torch.zeros(2)}) == 2
    )  # a list may be uncollated
    with pytest.raises(ConfigError, match="no tensor"):
        batch_size(())
