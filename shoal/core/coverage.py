"""Law 2: the record of which samples shaped the model, kept by whoever commits, never by whoever hands out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class CoverageTotals:
    """How often samples shaped the model, added up over finished epochs."""

    expected: int = 0
    once: int = 0
    missed: int = 0
    repeated: int = 0

    def __add__(self, other: CoverageTotals) -> CoverageTotals:
        return CoverageTotals(
            self.expected + other.expected,
            self.once + other.once,
            self.missed + other.missed,
            self.repeated + other.repeated,
        )

    def to_json(self) -> dict[str, int]:
        return {
            "expected": self.expected,
            "once": self.once,
            "missed": self.missed,
            "repeated": self.repeated,
        }

    @classmethod
    def from_json(cls, data: dict[str, int]) -> CoverageTotals:
        return cls(data["expected"], data["once"], data["missed"], data["repeated"])


class EpochCoverage:
    """How often each sample of the current epoch has shaped the model, as far as this worker computed it."""

    def __init__(self, samples: int) -> None:
        self.counts: Counts = np.zeros(samples, dtype=np.uint8)

    def commit(self, indices: npt.NDArray[np.int64]) -> None:
        """Record samples whose effect has just been applied to the model."""
        np.add.at(self.counts, indices, 1)

    def reset(self) -> None:
        self.counts[:] = 0


def totals(counts: Counts, expected: int) -> CoverageTotals:
    """Judge the counts of a whole group: `expected` samples should have been seen by now, each once."""
    once = int(np.count_nonzero(counts == 1))
    repeated = int(np.count_nonzero(counts > 1))
    return CoverageTotals(expected, once, expected - once - repeated, repeated)
