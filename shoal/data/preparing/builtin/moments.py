"""Count, mean and squares of numbers, exact under merging in any order of parts; nulls and NaN are left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Moments:
    """`squares` is the sum of squared distances from the mean."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float | None = None
    high: float | None = None
    missing: int = 0

    @classmethod
    def of(cls, values: Any) -> Moments:
        """Of a `pyarrow.Array` of numbers."""
        import numpy as np
        import pyarrow as pa

        known = values.drop_null() if values.null_count else values
        if pa.types.is_boolean(known.type):
            known = known.cast(pa.uint8())
        numbers = known.to_numpy(zero_copy_only=False).astype(np.float64)
        numbers = numbers[~np.isnan(numbers)]
        missing = len(values) - len(numbers)
        if not len(numbers):
            return cls(missing=missing)
        mean = float(numbers.mean())
        squares = float(np.square(numbers - mean).sum())
        return cls(len(numbers), mean, squares, float(numbers.min()), float(numbers.max()), missing)

    def __add__(self, other: Moments) -> Moments:
        missing = self.missing + other.missing
        if not self.count or not other.count:
            one = self if self.count else other
            return Moments(one.count, one.mean, one.squares, one.low, one.high, missing)
        count = self.count + other.count
        apart = other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart * apart * self.count * other.count / count,
            min(low for low in (self.low, other.low) if low is not None),
            max(high for high in (self.high, other.high) if high is not None),
            missing,
        )

    @property
    def std(self) -> float:
        return (self.squares / self.count) ** 0.5 if self.count else 0.0

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def is_number(kind: Any) -> bool:
    """Whether a `pyarrow.DataType` is one of numbers."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
