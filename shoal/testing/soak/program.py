"""What is trained, as a value: a pure function of a random generator, small enough for a run of a second."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

Body = Literal["mlp", "conv", "lstm", "attention", "table"]
Norm = Literal["none", "batch", "layer", "group"]
LossName = Literal["cross", "smooth", "weighted", "masked", "sum", "squares", "function", "pair"]
OptimizerName = Literal["sgd", "momentum", "adam", "adamw", "adafactor", "muon", "nadam", "rprop"]
ScheduleName = Literal["constant", "steps", "samples", "epochs", "function", "torch", "torch-epochs"]
ClipName = Literal["none", "norm", "value", "weights"]

BODIES: tuple[Body, ...] = ("mlp", "conv", "lstm", "attention", "table")
NORMS: tuple[Norm, ...] = ("none", "batch", "layer", "group")
LOSSES: tuple[LossName, ...] = ("cross", "smooth", "weighted", "masked", "sum", "squares", "function", "pair")
OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam", "adamw", "adafactor", "muon", "nadam", "rprop")
SCHEDULES: tuple[ScheduleName, ...] = ("constant", "steps", "samples", "epochs", "function", "torch", "torch-epochs")
CLIPS: tuple[ClipName, ...] = ("none", "norm", "value", "weights")
FLAT: tuple[Body, ...] = ("mlp", "table")  # their parameters can all be matrices, as Muon wants them


@dataclass(frozen=True)
class Program:
    """A model, its data and how it is trained, as an ordinary script would say it.

    `grain` 0 leaves that to Shoal. `extras`: parameters that are ``tied``, ``frozen``, ``unused``, or used by ``rare``
    samples only. `outside`: a callback computes a gradient of its own ``eval`` after evaluations, ``step`` after steps.
    """

    seed: int = 1
    samples: int = 40
    batch: int = 8
    epochs: int = 2
    grain: int = 0
    grainwise: bool = False  # passes=grain
    body: Body = "mlp"
    layers: int = 1
    width: int = 6
    norm: Norm = "none"
    whole: bool = False  # statistics=global: batch normalisation looks at the whole batch
    dropout: float = 0.0
    extras: tuple[str, ...] = ()
    rows: int = 12  # of the table
    sparse: bool = False
    inputs: int = 1
    double: bool = False
    loss: LossName = "cross"
    optimizer: OptimizerName = "sgd"
    groups: int = 1
    schedule: ScheduleName = "constant"
    clip: ClipName = "none"
    accumulate: int = 1
    dataset: bool = False  # read one by one, not tensors
    tests: int = 11
    outside: Literal["none", "eval", "step"] = "none"

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    @property
    def draws(self) -> bool:
        """Whether the model draws random numbers as it trains."""
        return self.dropout > 0

    @property
    def looks_at(self) -> int:
        """How many samples batch normalisation looks at, and what draws is seeded for, at most; 0: Shoal decides."""
        return self.batch if self.whole else self.grain

    def last_grain(self, grain: int) -> int:
        """The size of the smallest grain there is."""
        last = self.samples % self.batch or self.batch
        return min(batch % grain or grain for batch in (last, min(self.batch, self.samples)))


def sound(program: Program) -> Program:
    """The nearest program that plain PyTorch, too, can train."""
    fixes: dict[str, object] = {}
    if program.batch > program.samples:
        fixes["batch"] = program.samples
    if program.optimizer == "muon" and program.body not in FLAT:
        fixes["body"] = "mlp"
    if program.sparse and program.body != "table":
        fixes["body"] = "table"
    if program.loss in ("masked", "pair"):  # a batch of nothing but masked samples has no mean
        last = program.samples % program.batch
        if 0 < last < 4:
            fixes["samples"] = program.samples + 4 - last
        if program.batch < 4:
            fixes["batch"] = 4
    if program.whole and (program.norm != "batch" or program.draws):
        fixes["whole"] = False
    elif program.whole:
        fixes |= {"grainwise": False, "accumulate": 1}
    program = replace(program, **fixes)  # type: ignore[arg-type]  # names of fields
    if program.norm == "batch" and (program.body != "conv" or program.layers > 1):  # it cannot look at one number alone
        program = replace(program, batch=max(2, program.batch), samples=max(2, program.samples))
        whole = min(program.batch, program.samples)
        grain = min(program.grain or 5, whole)
        if grain == 1 or whole % grain == 1:
            grain = whole
        program = replace(program, grain=grain)
        while program.last_grain(program.looks_at) == 1:
            program = replace(program, samples=program.samples + 1)
    return program


def draw_program(draw: random.Random) -> Program:
    """One of very many programs."""
    batch = draw.choice((3, 4, 5, 7, 8, 11, 13, 16))
    steps = draw.choice((2, 3, 4, 5, 7))
    last = draw.choice((1, 1, 2, 3, batch - 1, batch, batch // 2 or 1))
    body = draw.choice((*BODIES, "mlp", "table"))
    return sound(
        Program(
            seed=draw.randrange(1, 1000),
            samples=max(2, batch * (steps - 1) + min(last, batch)),
            batch=batch,
            epochs=draw.choice((2, 3, 4)),
            grain=draw.choice((0, 0, 1, 2, 3, 5)),
            grainwise=draw.random() < 0.35,
            body=body,
            layers=draw.choice((1, 1, 2)),
            width=draw.choice((6, 8, 10)),
            norm=draw.choice(("none", *NORMS)),
            whole=draw.random() < 0.3,
            dropout=draw.choice((0.0, 0.0, 0.0, 0.2)),
            extras=tuple(one for one in ("tied", "frozen", "unused", "rare") if draw.random() < 0.2),
            rows=draw.choice((5, 12, 40)),
            sparse=body == "table" and draw.random() < 0.7,
            inputs=draw.choice((1, 1, 2)),
            double=draw.random() < 0.5,
            loss=draw.choice(LOSSES),
            optimizer=draw.choice(OPTIMIZERS),
            groups=draw.choice((1, 1, 2)),
            schedule=draw.choice(("constant", *SCHEDULES)),
            clip=draw.choice(("none", "none", *CLIPS)),
            accumulate=draw.choice((1, 1, 1, 2, 3)),
            dataset=draw.random() < 0.5,
            tests=draw.choice((1, 3, 11)),
            outside=draw.choice((*("none",) * 12, "eval", "step")),
        )
    )
