"""The script that the end-to-end tests train: an ordinary program, with a way to go wrong for each test.

Written to a directory of the test's own, so that tracebacks and run directories are those of a user.
"""

from __future__ import annotations

SAMPLES = 237  # divides by nothing
GLOBAL_BATCH = 20
STEPS_PER_EPOCH = 12

# Ctrl-C from within: the process that it would reach is the zygote's parent, or this one
INTERRUPT = """
def interrupt():
    session = shoal.launch.session.current()
    zygote = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()
    os.kill(int(zygote[1]) if session.launched else os.getpid(), signal.SIGINT)
    until = time.monotonic() + 120
    while not session.control.stop_requested and time.monotonic() < until:
        time.sleep(0.001)
"""

SCRIPT = """
import argparse
import os
import signal
import sys
import time

import torch
from torch import nn

import shoal

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="mlp")
parser.add_argument("--optimizer", default="momentum")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--signal", type=int, nargs="*", default=[])  # numbers of steps: SIGINT to the launcher there
parser.add_argument("--hang", action="store_true")  # after the first of them
options = parser.parse_args()

MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4)),
    "norm": lambda: nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)),
    "dropout": lambda: nn.Sequential(nn.Linear(10, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4)),
}
OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 10, generator=generator)
    return inputs, (inputs[:, :4] + 0.3 * torch.randn(count, 4, generator=generator)).argmax(1)


INTERRUPT

class CtrlC(shoal.callbacks.Callback):
    def on_step(self, event, run):
        if event.cursor.step in options.signal:
            interrupt()
            while options.hang:
                sum(range(10_000))  # it computes: nobody waits for one that does nothing


trainer = shoal.Trainer(
    model=MODELS[options.model](),
    loss=nn.CrossEntropyLoss(),
    optimizer=OPTIMIZERS[options.optimizer],
    train=data(237, 1),
    test=data(61, 2),
    global_batch=20,
    epochs=options.epochs,
    callbacks=[CtrlC()],
)
trainer.fit()
""".replace("INTERRUPT\n", INTERRUPT)

# a program that is right, for tests that put one thing wrong: `{model}`, `{loss}` and so on are expressions
TEMPLATE = """
import os, signal, sys, time
import torch
from torch import nn
import shoal

def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 10, generator=generator)
    return inputs, inputs[:, :4].argmax(1)

def rank():
    return shoal.launch.session.current().world.rank
{interrupt}
{before}
trainer = shoal.Trainer(
    model={model},
    loss={loss},
    optimizer={optimizer},
    train={train},
    test={test},
    global_batch={global_batch},
    {settings}
)
{fit}
"""

_RIGHT = {
    "before": "",
    "model": "nn.Linear(10, 4)",
    "loss": "nn.CrossEntropyLoss()",
    "optimizer": "lambda parameters: torch.optim.SGD(parameters, lr=0.1)",
    "train": "data(237, 1)",
    "test": "data(61, 2)",
    "global_batch": "20",
    "settings": "epochs=2,",
    "fit": "trainer.fit()",
}


def program(**wrong: str) -> str:
    """The text of a right program, but for what is given."""
    assert set(wrong) <= set(_RIGHT), wrong
    return TEMPLATE.format(**{**_RIGHT, **wrong}, interrupt=INTERRUPT)
