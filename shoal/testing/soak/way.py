"""How a program is run, as a value, and the words of the command line for it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from shoal.testing.soak.program import Program

StrategyName = Literal["single", "allreduce", "parameter-server", "async", "incremental", "hybrid"]
Outer = Literal["incremental", "allreduce", "parameter-server", "async"]

STRATEGIES: tuple[StrategyName, ...] = (
    "single", "allreduce", "parameter-server", "async", "incremental", "hybrid",
)  # fmt: skip
OUTERS: tuple[Outer, ...] = ("incremental", "allreduce", "parameter-server", "async")
CODECS = ("none", "bf16", "fp16", "int8", "topk:0.2", "powersgd:2", "auto")
SERVED = ("parameter-server", "async")
WEIGHTS = {1: (1,), 2: (3, 1), 3: (1, 0, 2), 4: (5, 1, 0, 1), 5: (2, 1, 1, 0, 3)}


@dataclass(frozen=True)
class Way:
    """One way. `checkpoint` and `h` are numbers of steps, 0 leaves them as they are by default; `room` is how many more
    workers may come than there are at first. `own_loop`: by `shoal.prepare`, not by a Trainer."""

    strategy: StrategyName = "allreduce"
    workers: int = 2
    outer: Outer = "incremental"
    team: int = 2
    consistency: str = "bsp"
    servers: int = 1
    replicas: int = 1
    codec: str = "none"
    h: int = 0
    mixing: bool = False
    uneven: bool = False
    balance: bool = False
    loaders: int = 0
    evaluator: bool = False
    own_loop: bool = False
    gloo: bool = False
    checkpoint: int = 0
    room: int = 0
    pace_ms: int = 0

    @property
    def kind(self) -> str:
        """The strategy that decides what is computed: of a hybrid, the outer one."""
        return self.outer if self.strategy == "hybrid" else self.strategy

    @property
    def served(self) -> bool:
        return self.kind in SERVED

    @property
    def trainers(self) -> int:
        """How many there are that train apart from each other, where they do."""
        return max(1, -(-self.workers // self.team)) if self.strategy == "hybrid" else self.workers

    @property
    def exact(self) -> bool:
        """Whether what is promised is the mathematics of one process."""
        if self.codec != "none" and (self.workers + self.room > 1 or self.served):
            return False  # a hybrid of one team is its inner strategy, with the codec
        if self.trainers == 1 and not self.room and not self.mixing:
            return True  # whoever trains alone is never behind anyone
        return self.in_step

    @property
    def in_step(self) -> bool:
        """Whether workers compute one global batch at the same time."""
        return self.kind in ("single", "allreduce") or (self.kind == "parameter-server" and self.consistency == "bsp")

    @property
    def kept(self) -> float:
        """Of the way that one step goes, the part that the model keeps. In elastic averaging exchanges leave the sum of
        the central weights and of everybody's own as it is, and a step adds to one of them: all come to share it."""
        apart = replace(self, workers=self.workers + self.room).trainers
        return 1 / (apart + 1) if self.mixing and self.kind == "async" else 1.0

    def steps_of_one(self, program: Program) -> float:
        """Of all steps, the part that each of those makes who train apart and are averaged: where a batch has fewer
        grains than there are of them, some make none from it, and an average of steps goes as far as one."""
        if self.kind != "incremental":
            return 1.0
        apart = replace(self, workers=self.workers + self.room).trainers
        fewest = 16 if program.norm == "batch" else 1  # samples in a grain, where Shoal decides
        grains = -(-program.batch // program.grain) if program.grain else max(1, program.batch // fewest)
        return min(1.0, grains / apart)

    def words(self) -> list[str]:
        """The options of ``shoal train``."""
        settings: dict[str, object] = {
            "hybrid.outer": self.outer if self.strategy == "hybrid" else None,
            "hybrid.team": self.team if self.strategy == "hybrid" else None,
            "server.consistency": self.consistency if self.served and self.kind != "async" else None,
            "servers": self.servers if self.served else None,
            "server.replicas": self.replicas if self.served else None,
            "comm.codec": self.codec if self.codec != "none" else None,
            "incremental.h": self.h or None,
            "asynchronous.mixing": 0.5 if self.mixing and self.kind == "async" else None,
            "weights": list(WEIGHTS[self.workers]) if self.uneven and not self.balance else None,
            "balance": "auto" if self.balance else None,
            "loader.processes": self.loaders or None,
            "evaluator.enabled": "true" if self.evaluator and not self.own_loop else None,
            "evaluator.every_s": 0.2 if self.evaluator and not self.own_loop else None,
            "comm.backend": "gloo" if self.gloo else None,
            "checkpoint.every": f"'{self.checkpoint} steps'" if self.checkpoint else None,
            "elastic.max_restarts": 100,
            "elastic.max_workers": self.workers + self.room if self.room else None,
            "elastic.pace_s": self.pace_ms / 1000 if self.pace_ms else None,
        }
        words = ["--strategy", self.strategy, "--workers", str(self.workers)]
        for name, value in settings.items():
            if value is not None:
                words += ["--set", f"{name}={value}"]
        return words


def sound_way(way: Way) -> Way:
    """Without what has no effect there, so that two ways that are the same look the same."""
    usual = Way()
    fixes: dict[str, object] = {}
    if way.strategy == "single":
        fixes |= {"workers": 1, "room": 0}
    if way.strategy != "hybrid":
        fixes |= {"outer": usual.outer, "team": usual.team}
    if not way.served:
        fixes |= {"servers": usual.servers, "replicas": usual.replicas}
    if not way.served or way.kind == "async":
        fixes["consistency"] = usual.consistency
    if way.kind != "async":
        fixes["mixing"] = False
    if way.kind != "incremental":
        fixes["h"] = 0
    if way.own_loop:
        fixes["evaluator"] = False
    if way.room:
        fixes["uneven"] = False
    return replace(way, **fixes)  # type: ignore[arg-type]  # names of fields


def draw_way(draw: random.Random) -> Way:
    """One of very many ways."""
    strategy = draw.choice((*STRATEGIES[1:], "allreduce", "parameter-server", "hybrid"))
    if draw.random() < 0.04:
        strategy = "single"
    workers = draw.choice((1, 2, 2, 3, 4, 5))
    return sound_way(
        Way(
            strategy=strategy,
            workers=max(workers, 3) if strategy == "hybrid" else workers,
            outer=draw.choice(OUTERS),
            team=draw.choice((2, 2, 2, 3)),
            consistency=draw.choice(("bsp", "bsp", "bsp", "ssp:1", "asp")),
            servers=draw.choice((1, 2, 2, 3)),
            replicas=draw.choice((1, 1, 1, 2)),
            codec=draw.choice(("none",) * 16 + CODECS),
            h=draw.choice((0, 1, 3)),
            mixing=draw.random() < 0.2,
            uneven=draw.random() < 0.15,
            balance=draw.random() < 0.1,
            loaders=draw.choice((0, 0, 0, 0, 0, 1)),
            evaluator=draw.random() < 0.08,
            own_loop=draw.random() < 0.2,
            gloo=draw.random() < 0.1,
            checkpoint=draw.choice((0, 1, 2, 3, 5)),
            room=draw.choice((0, 0, 0, 2)),
            pace_ms=draw.choice((0, 0, 0, 20)),
        )
    )
