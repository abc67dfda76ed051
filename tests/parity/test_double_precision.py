"""A model in double precision whose grains run one by one learns as plain PyTorch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shoal
from shoal.core.order import epoch_order

pytestmark = pytest.mark.parity


def test_a_model_in_double_precision_is_trained(tmp_path: Path) -> None:
    torch.manual_seed(3)
    inputs, labels = torch.randn(24, 5, dtype=torch.float64), torch.randint(3, (24,))
    model, plain = nn.Linear(5, 3).double(), nn.Linear(5, 3).double()
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for start in range(0, 24, 8):
        rows = torch.from_numpy(epoch_order(0, 0, 24)[start : start + 8].copy())
        optimizer.zero_grad()
        F.cross_entropy(plain(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    trainer = shoal.Trainer(
        model,
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        (inputs, labels),
        global_batch=8,
        grain=3,
        passes="grain",
        epochs=1,
    )
    trainer.fit(run_dir=tmp_path / "run")
    assert torch.allclose(model.weight, plain.weight, rtol=0, atol=1e-12)
