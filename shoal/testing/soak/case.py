"""One case: a program, a way to run it, a history; as a value, and as one line of text."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from shoal.core.errors import ConfigError
from shoal.core.seeds import mix
from shoal.testing.soak.history import Fault, History, draw_history
from shoal.testing.soak.program import Program, draw_program, sound
from shoal.testing.soak.way import Way, draw_way, sound_way
from shoal.testing.soak.words import from_words, to_words

WHOLE_ARRAYS = ("muon", "adafactor")  # optimizers that cannot update single rows of a table
_PARTS = "program | way | history"


@dataclass(frozen=True)
class Case:
    program: Program
    way: Way
    history: History

    def way_of(self, command: int) -> Way:
        """How that command runs it: 0 is the first."""
        return self.history.then if command and self.history.then is not None else self.way

    def text(self) -> str:
        """The line that repeats it."""
        history = " ".join(fault.text() for fault in self.history.faults)
        parts = [to_words(self.program), to_words(self.way), history]
        if self.history.then is not None:
            parts.append(to_words(self.history.then))
        return " | ".join(parts)

    @classmethod
    def parse(cls, text: str) -> Case:
        """What `text` has written. Raises `ConfigError` that says what is wrong."""
        parts = text.split("|")
        if len(parts) not in (3, 4):
            raise ConfigError(f"{text!r} is no case: write {_PARTS}, or {_PARTS} | the way in which it goes on")
        history = History(
            tuple(Fault.parse(word) for word in parts[2].split()),
            from_words(Way, parts[3]) if len(parts) == 4 else None,
        )
        return cls(from_words(Program, parts[0]), from_words(Way, parts[1]), history)


def sound_case(case: Case) -> Case:
    """The nearest case that makes sense: a program that PyTorch can train, in a way that has what is hurt."""
    program, then = sound(case.program), case.history.then
    if then is not None:
        then = _as_the_script(then, case.way, program)
    return Case(program, sound_way(case.way), replace(case.history, then=then))


def runs_by(program: Program, way: Way) -> bool:
    """Whether the documentation says of no part of the program that this way refuses it."""
    if program.whole and not way.in_step:
        return False
    rows = program.sparse and way.served and not way.mixing  # servers update single rows of a table
    return not (rows and program.optimizer in WHOLE_ARRAYS)


def _as_the_script(then: Way, way: Way, program: Program) -> Way:
    """The way in which it goes on: by the same script, of which nothing is refused."""
    then = sound_way(replace(then, own_loop=way.own_loop))
    if runs_by(program, then):
        return then
    if then.strategy == "hybrid":
        return sound_way(replace(then, outer="allreduce"))
    return sound_way(replace(then, strategy="allreduce"))


def draw_case(seed: int, number: int, leave_out: frozenset[str] = frozenset()) -> Case:
    """Case `number` of a soak: a pure function of its arguments."""
    draw = random.Random(mix(11, seed, number))  # noqa: S311 - cases to be repeated, no secret
    program, way, then = draw_program(draw), draw_way(draw), draw_way(draw)
    return sound_case(Case(program, way, draw_history(draw, way, then, program.steps, leave_out)))
