"""Runs that hurt themselves at exact moments, and what must be the same afterwards as if nothing had happened.

The script is an ordinary program whose loss, data and callbacks can be told to do something at a step. What a worker
does once in a run is remembered in a file, so that whoever does that step again does not do it again.
"""

from __future__ import annotations

import shutil

import torch
from e2e import Done, Run, Shoal

from shoal.checkpoint.catalog import Catalog

HEAD = """
import os, signal, sys, time
from pathlib import Path
import torch
from torch import nn
import shoal
from shoal.launch.session import current

MARKS = Path("marks")
MARKS.mkdir(exist_ok=True)

def rank():
    return current().rank

def size():
    return current().size

def once(name):
    "True for the first worker that asks, in the whole run."
    try:
        os.close(os.open(MARKS / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def die(name="die", number=signal.SIGKILL):
    if once(name):
        os.kill(os.getpid(), number)
        time.sleep(60)

def step():
    "The step under way, as the control page has it."
    session = current()
    return session.control.reading(session.world.seat).step

def phase():
    session = current()
    return session.control.reading(session.world.seat).phase

def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it did not come true")
        time.sleep(0.002)

def somebody_at_the_door():
    session = current()
    return session.attendance._word().change >= session.control.reading(session.world.seat).view

def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 10, generator=generator)
    return inputs, inputs[:, :4].argmax(1)
"""

FIT = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 16), {norm} nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        if self.training:
            {forward}
        else:
            {evaluation}
        return self.body(x)

class Samples(torch.utils.data.Dataset):
    "The same samples, read one by one."
    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        {sample}
        return tuple(tensor[index] for tensor in self.tensors)

class Loss(nn.CrossEntropyLoss):
    def forward(self, output, target):
        if torch.is_grad_enabled():
            {loss}
        return super().forward(output, target)

class Hurt(shoal.callbacks.Callback):
    def on_step(self, event, run):
        {on_step}

    def on_eval(self, event, run):
        {on_eval}

    def on_checkpoint(self, event, run):
        {on_checkpoint}

trainer = shoal.Trainer(
    model=Net(),
    loss={loss_module}(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    train={train},
    test=data(61, 2),
    global_batch=20,
    grain=5,
    eval_batch=8,
    epochs={epochs},
    callbacks=[Hurt()],
    {settings}
)
{fit}
"""
)

_CALM = {
    "norm": "",
    "forward": "pass",
    "evaluation": "pass",
    "loss": "pass",
    "sample": "pass",
    "on_step": "pass",
    "on_eval": "pass",
    "on_checkpoint": "pass",
    "epochs": "3",
    "settings": "",
    "fit": "trainer.fit()",
}


def script(**hurts: str) -> str:
    """The text of the program. What is given is a statement at that place."""
    assert set(hurts) <= set(_CALM), hurts
    train = "Samples(data(237, 1))" if "sample" in hurts else "data(237, 1)"
    loss = "Loss" if "loss" in hurts else "nn.CrossEntropyLoss"
    return FIT.format(**{**_CALM, **hurts}, train=train, loss_module=loss)


def parameters(run: Run) -> torch.Tensor:
    """All parameters, buffers and moments of the newest checkpoint in a row."""
    found = Catalog(run.checkpoints).newest_valid(lambda message: None)
    assert found is not None, "the run has left no checkpoint"
    pieces = found.state.pieces
    names = sorted(name for name in pieces if not name.startswith("coverage"))
    return torch.cat([pieces[name].tensor.double().flatten() for name in names])


def difference(found: Run, expected: Run) -> float:
    """The norm of the difference of two runs' states, relative to that of the second."""
    a, b = parameters(found), parameters(expected)
    assert a.shape == b.shape
    return float((a - b).norm() / b.norm())


class Trials:
    """Runs scripts in the directory of a test, hurt and calm."""

    def __init__(self, shoal: Shoal) -> None:
        self.shoal = shoal

    def train(self, text: str, *words: str, run: str = "run") -> tuple[Done, Run]:
        """Run `text` anew."""
        shutil.rmtree(self.shoal.directory / "marks", ignore_errors=True)
        self.shoal.write(text)
        done = self.shoal.train(*words, "--run-dir", run)
        return done, Run(self.shoal.directory / run)

    def calm(self, text: str, *words: str) -> Run:
        """Run `text`, which hurts nobody."""
        done, run = self.train(text, *words, run="calm")
        assert done.status == 0, done
        assert not run.summary()["faults"]
        return run


def assert_same(found: Run, expected: Run, tolerance: float = 5e-6) -> None:
    """The hurt run has completed, every sample has shaped the model once, and the model is that of the calm run."""
    summary = found.summary()
    assert summary["status"] == "completed", summary
    coverage, samples = summary["coverage"], expected.summary()["samples"]
    exactly = {"expected": samples, "once": samples, "missed": 0, "repeated": 0}
    assert coverage == exactly, f"the coverage is {coverage}"
    assert summary["steps"] == expected.summary()["steps"], f"{summary['steps']} steps"
    apart = difference(found, expected)
    assert apart <= tolerance, f"the parameters differ by {apart:.1e}"
