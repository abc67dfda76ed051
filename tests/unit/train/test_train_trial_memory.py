"""The trial before the first step holds one gradient, as a step does."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

_TRIAL = """
import ctypes, sys
import numpy as np, torch
from torch import nn
from shoal.strategies.objective import make_objective
from shoal.train.cutting import look_at
from shoal.train.draws import Few

def peak_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

ctypes.CDLL(None).mallopt(-3, 1 << 20)  # what is freed goes back at once, so the peak is of what is held
dropout, width = float(sys.argv[1]), 2048
layers = [part for _ in range(4) for part in (nn.Linear(width, width, bias=False), nn.Dropout(dropout))]
model = nn.Sequential(*layers) if dropout else nn.Sequential(*layers[::2])
given = torch.randn(5, width)
both, *parts = (Few(np.arange(a, b), (given[a:b], given[a:b])) for a, b in ((0, 5), (0, 2), (2, 5)))
before = peak_kib()
look = look_at(model, make_objective(nn.MSELoss()), parts, both)
after = peak_kib()
assert look.separate is None, look.separate
print((after - before) * 1024 / sum(parameter.nbytes for parameter in model.parameters()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc, which only Linux has")
@pytest.mark.parametrize("dropout", [0.1, 0.0], ids=["draws", "plain"])
def test_the_trial_holds_one_gradient(dropout: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TRIAL, str(dropout)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    # the gradient, and that of one layer while it is added: a second whole one would make it more than two
    assert 0.9 < float(done.stdout) < 1.8
