"""From a prompt or a notebook: classes live in ``__main__``, there is no script, and life goes on after an error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import Process, Run

pytestmark = pytest.mark.ranks

# typed at a prompt: an empty line ends each block
SESSION = """
import torch, shoal, os, threading
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(10, 4)
    def forward(self, x):
        return self.inner(x)

class Data(torch.utils.data.Dataset):
    def __init__(self, bad=None):
        generator = torch.Generator().manual_seed(1)
        self.x, self.bad = torch.randn(237, 10, generator=generator), bad
    def __len__(self):
        return 237
    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("bad pixel")
        return self.x[index], int(self.x[index, :4].argmax())

def loss(model, batch):
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets)

def make(**settings):
    torch.manual_seed(3)
    return shoal.Trainer(model=Net(), loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), train=Data(),
                         test=Data(), global_batch=20, epochs=2, **settings)

def digest(model):
    from shoal.train.record import parameters_sha256
    return parameters_sha256(model)

trainer = make()
start = digest(trainer.model)
result = trainer.fit(workers=2, run_dir="two")
print("TRAINED", digest(trainer.model) == result.summary["params_sha256"] != start, result.status)
print("USABLE", trainer.model(torch.zeros(1, 10)).shape == (1, 4))

alone = make()
single = alone.fit(run_dir="one")
pairs = zip(alone.model.parameters(), trainer.model.parameters())
print("SAME", all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs))

def in_a_thread():
    other = make()
    found = other.fit(workers=2, run_dir="thread")
    print("THREAD", found.summary["params_sha256"] == result.summary["params_sha256"] == digest(other.model))

thread = threading.Thread(target=in_a_thread)
thread.start()
thread.join()

try:
    broken = make()
    broken._train._dataset.bad = 77
    broken.fit(workers=2, run_dir="broken")
except shoal.ShoalError as error:
    print("FAILED", type(error).__name__, "bad pixel" in str(error), "in __getitem__" in str(error))

again = make()
longer = again.fit(workers=2, run_dir="two")
print("AGAIN", longer.summary == result.summary, digest(again.model) == digest(trainer.model))

make(global_batch_size=3)
print("STILL HERE")
"""


def typed(session: str) -> str:
    """As a person types it: a prompt ends a block at the first empty line, or at the first line that is none of it."""
    lines: list[str] = []
    for line in session.splitlines():
        begins = not line.startswith((" ", "try", "except")) and lines and lines[-1].startswith(" ")
        lines += ["", line] if begins else [line]
    return "\n".join(line for line in lines) + "\n"


def test_a_session_at_a_prompt(start: Callable[..., Process], tmp_path: Path) -> None:
    done = start([sys.executable, "-i"], stdin=typed(SESSION)).end()
    told = dict(line.split(" ", 1) for line in done.out.splitlines() if line[:2].isupper())
    assert told["TRAINED"] == "True completed", done
    assert told["USABLE"] == "True"
    assert told["SAME"] == "True"
    assert told["THREAD"] == "True"
    assert told["FAILED"] == "WorkerFailed True True"
    assert told["AGAIN"] == "True True"
    assert "STILL HERE" in done.out
    # a mistake at a prompt is one line, and the prompt comes back
    assert "shoal: error: unknown setting 'global_batch_size' in Trainer(...): did you mean 'global_batch'?" in done.err
    assert done.status == 0, done.err
    for name in ("one", "two", "thread"):
        Run(tmp_path / name).outcome()
    assert Run(tmp_path / "broken").summary()["status"] == "failed"
    # what the first worker showed, and how one would go on
    assert "completed in" in done.out
    assert "trainer.fit(workers=2, run_dir=" in done.out


PIPED = SESSION[: SESSION.index("alone = ")] + "raise SystemExit(0)\n"


def test_a_program_from_a_pipe(start: Callable[..., Process], tmp_path: Path) -> None:
    """``python - < program.py``: there is no file that a worker could read again."""
    done = start([sys.executable, "-"], stdin=PIPED).end()
    assert done.status == 0, done
    assert "TRAINED True completed" in done.out
    Run(tmp_path / "two").outcome()
