"""Which checkpoints are kept: the newest, and the best by a metric. Pure functions of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Record:
    """What decides about a checkpoint: its name, how far training was, and what was measured then."""

    name: str
    step: int
    meta: Mapping[str, Any]

    def metric(self, monitor: str) -> float | None:
        """The metric by the name of `monitor`, or None if it was not measured or is NaN."""
        value = self.meta.get(monitor)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            return None
        return float(value)


def ranked(records: Sequence[Record], monitor: str, mode: Mode) -> list[Record]:
    """The records that have the metric, best first; of equals, the newer first."""
    sign = 1.0 if mode == "min" else -1.0
    measured = [
        (sign * metric, -record.step, record) for record in records if (metric := record.metric(monitor)) is not None
    ]
    return [record for _, _, record in sorted(measured, key=lambda entry: entry[:2])]


def best(records: Sequence[Record], monitor: str, mode: Mode) -> Record | None:
    """The best record, or None if none has the metric."""
    return next(iter(ranked(records, monitor, mode)), None)


def to_remove(records: Sequence[Record], keep_last: int, keep_best: int, monitor: str, mode: Mode) -> list[str]:
    """Names of those neither among the newest `keep_last` nor among the best `keep_best`, oldest first."""
    assert keep_last >= 1, "the newest checkpoint is what a run resumes from"
    by_age = sorted(records, key=lambda record: record.step)
    kept = {record.name for record in by_age[-keep_last:]}
    kept |= {record.name for record in ranked(records, monitor, mode)[:keep_best]}
    return [record.name for record in by_age if record.name not in kept]
