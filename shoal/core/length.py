"""Lengths of training with their unit: ``50 steps``, ``10000 samples``, ``2 epochs``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from shoal.core.cursor import Cursor

_UNITS = ("steps", "samples", "epochs")
_PATTERN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*$")


@dataclass(frozen=True)
class Length:
    """An amount of training. Written as text everywhere: ``50 steps``, ``1 epoch``, ``10000 samples``."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: object) -> Length:
        if isinstance(text, Length):
            return text
        match = _PATTERN.match(str(text))
        unit = match.group(2) if match else ""
        unit = unit if unit.endswith("s") else unit + "s"
        if match is None or unit not in _UNITS:
            raise ValueError(
                f"{text!r} is not a length of training: write such as '50 steps', '2 epochs', '10000 samples'"
            )
        amount = float(match.group(1))
        if amount <= 0:
            raise ValueError(f"{text!r} must be more than zero")
        if unit != "epochs" and amount != int(amount):
            raise ValueError(f"{text!r} must be a whole number of {unit}")
        return cls(amount, unit)

    def __str__(self) -> str:
        amount = int(self.amount) if self.amount == int(self.amount) else self.amount
        return f"{amount} {self.unit[:-1] if amount == 1 else self.unit}"

    def in_steps(self, per_epoch: int, global_batch: int) -> int:
        """The same length in global batches, at least 1."""
        per_unit = {"steps": 1.0, "samples": 1.0 / global_batch, "epochs": float(per_epoch)}
        return max(1, round(self.amount * per_unit[self.unit]))

    def elapsed(self, cursor: Cursor, per_epoch: int) -> float:
        """How many of these lengths `cursor` has behind it, as a fraction."""
        done = {
            "steps": float(cursor.step),
            "samples": float(cursor.samples),
            "epochs": cursor.epoch + cursor.batch / per_epoch,
        }[self.unit]
        return done / self.amount

    def due(self, before: Cursor, after: Cursor, per_epoch: int) -> bool:
        """Whether a multiple of this length lies between two cursors (`after` included)."""
        return int(self.elapsed(after, per_epoch) + 1e-9) > int(self.elapsed(before, per_epoch) + 1e-9)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )
