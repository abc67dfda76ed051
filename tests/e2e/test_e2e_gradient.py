"""A gradient that is not defined, under a loss that is finite: no checkpoint ever holds it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import shoal, torch
from torch import nn
torch.manual_seed(0)
def loss(model, batch):
    x, y = batch
    value = ((model(x) - y) ** 2).mean()
    return value + (0 * model.weight.sum()).abs().sqrt() * 0 if len(steps) == 6 else value
steps = []  # counted by the optimizer: the loss is also called before the first step, to look at the program
def optimizer(parameters):
    sgd = torch.optim.SGD(parameters, lr=0.01)
    sgd.register_step_post_hook(lambda *_: steps.append(1))
    return sgd
shoal.Trainer(
    model=nn.Linear(4, 1), loss=loss, optimizer=optimizer,
    train=(torch.randn(64, 4), torch.randn(64, 1)), global_batch=16, epochs=4, passes="merged",
    checkpoint={"every": "1 step"}, eval_every="never", run_dir="run",
).fit()
"""


@pytest.mark.ranks
def test_a_model_with_nan_is_not_saved(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "shoal", "train", "script.py", "--workers", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "model.weight holds NaN or infinite values after step 7" in done.stderr
    assert "Traceback" not in done.stderr
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    assert newest.name == "step-00000006"
    assert str(newest) in done.stderr
    assert json.loads((newest / "manifest.json").read_text())["cursor"]["step"] == 6
