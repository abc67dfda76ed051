"""The script of a case: an ordinary program, built from a value, that tells what it sees and hurts itself as told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import shoal
from shoal.core.events import CheckpointSaved, Evaluated, StepCommitted
from shoal.launch.session import current
from shoal.testing.plan import RULES
from shoal.testing.soak.case import Case
from shoal.testing.soak.hurting import Hurting
from shoal.testing.soak.network import (
    CLIPS,
    Network,
    Tensors,
    make_data,
    make_loss,
    make_model,
    make_optimizer,
)
from shoal.testing.soak.program import Program
from shoal.train.callbacks import Callback
from shoal.train.callbacks.base import RunInfo

SCRIPT = "from shoal.testing.soak.play import play\n\nplay()\n"
ORDER = "case.json"  # what is to be played, and by which command of the case
SEEN, READ = "seen", "read"  # folders: a file for each process


class Samples(torch.utils.data.Dataset[Tensors]):
    """Data that is read one by one, and writes down which."""

    def __init__(self, tensors: Tensors, place: Path | None) -> None:
        self._tensors, self._place = tensors, place

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> Tensors:
        if self._place is not None:
            _append(self._place / READ / str(os.getpid()), f"{index}\n")
        return tuple(tensor[index] for tensor in self._tensors)


class Saliency(Callback):
    """What people do between steps: a gradient of their own, after which they clear up."""

    def __init__(self, program: Program) -> None:
        self._when, self._batch = program.outside, make_data(program, test=True)[:-1]

    def on_eval(self, event: Evaluated, run: RunInfo) -> None:
        if self._when == "eval":
            self._look(run.module)

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        if self._when == "step" and event.cursor.step % 3 == 1:
            self._look(run.module)

    def _look(self, model: nn.Module) -> None:
        training = model.training
        model.eval()
        model(*self._batch).square().sum().backward()
        model.zero_grad()
        model.train(training)


class Told(Callback):
    """Moments that only the first worker is told of."""

    def __init__(self, hurting: Hurting) -> None:
        self._hurting = hurting

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        self._hurting.at("step")

    def on_checkpoint(self, event: CheckpointSaved, run: RunInfo) -> None:
        self._hurting.at("save")


def play() -> None:
    """Train the case of this directory."""
    place = Path.cwd()
    order = json.loads((place / ORDER).read_text())
    case, leg = Case.parse(order["case"]), int(order["leg"])
    hurting = Hurting(place, case.history.faults, leg, case.way_of(leg).replicas)
    model = make_model(case.program)
    model.seen = partial(_seen, place, leg, model, hurting)
    callbacks = [Told(hurting), Saliency(case.program)]
    (_play_loop if case.way.own_loop else _play_trainer)(
        case.program, model, _loss(case.program, hurting), callbacks, place
    )


def _play_trainer(program: Program, model: Network, loss: Any, callbacks: list[Callback], place: Path) -> None:
    trainer = shoal.Trainer(
        model,
        loss,
        partial(make_optimizer, program),
        _source(program, place),
        make_data(program, test=True),
        schedule=RULES[program.schedule].given,
        callbacks=callbacks,
        epochs=program.epochs,
        **_settings(program),
    )
    trainer.fit()


def _play_loop(program: Program, model: Network, loss: Any, callbacks: list[Callback], place: Path) -> None:
    run = shoal.prepare(
        model,
        partial(make_optimizer, program),
        loss,
        schedule=RULES[program.schedule].given,
        callbacks=callbacks,
        **_settings(program),
    )
    data, test = _source(program, place), make_data(program, test=True)
    for _ in range(program.epochs):
        for batch in run.batches(data):
            run.step(batch)
        run.evaluate(test)
    run.finish()


def _settings(program: Program) -> dict[str, Any]:
    return {
        "global_batch": program.batch,
        "seed": program.seed,
        "grain": program.grain or None,
        "passes": "grain" if program.grainwise else None,
        "statistics": "global" if program.whole else None,
        "clip": CLIPS[program.clip],
        "accumulate": program.accumulate,
        "eval_batch": 4,
    }


def _source(program: Program, place: Path) -> Any:
    tensors = make_data(program)
    return Samples(tensors, place) if program.dataset else tensors


def _loss(program: Program, hurting: Hurting) -> Any:
    """The user's loss, with a moment behind the model."""
    loss = make_loss(program)
    if isinstance(loss, nn.Module):

        def before(module: nn.Module, given: Any) -> None:
            if torch.is_grad_enabled():
                hurting.at("loss")

        loss.register_forward_pre_hook(before)
        return loss
    return _between(loss, hurting)


def _between(loss: Callable[..., Any], hurting: Hurting) -> Callable[..., Any]:
    def measured(model: nn.Module, batch: Any) -> Any:
        result = loss(model, batch)
        if torch.is_grad_enabled():
            hurting.at("loss")
        return result

    return measured


def _seen(
    place: Path, leg: int, model: nn.Module, hurting: Hurting, numbers: Tensor
) -> Callable[[Tensor], None] | None:
    """A pass of the model: what is to be called when its gradient comes, which tells which samples it was of. Who only
    looks at the model, such as Shoal before the first step, has learned nothing from them."""
    session = current()
    reading = session.control.reading(session.world.seat)
    if not model.training:
        if reading.phase == "evaluate":
            hurting.at("eval")
        return None
    if reading.phase != "forward":
        return None
    hurting.at("forward")
    line = {"leg": leg, "view": reading.view, "step": reading.step, "samples": numbers.tolist()}

    def learned(gradient: Tensor) -> None:
        _append(place / SEEN / str(os.getpid()), json.dumps(line) + "\n")

    return learned


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)
