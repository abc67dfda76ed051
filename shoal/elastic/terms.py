"""On which terms a run has its members."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Terms:
    """`lease_s`: how long a worker may give no sign of life. No view has fewer than `min_workers` members (except to
    finish a fit that others have finished already), and none more than `max_workers`."""

    lease_s: float = 2.0
    min_workers: int = 1
    max_workers: int | None = None

    def __post_init__(self) -> None:
        if self.lease_s <= 0:
            raise ConfigError(f"elastic.lease_s={self.lease_s}: must be more than 0")
        if self.min_workers < 1:
            raise ConfigError(f"elastic.min_workers={self.min_workers}: must be at least 1")
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ConfigError(
                f"elastic.max_workers={self.max_workers}: must be at least elastic.min_workers={self.min_workers}"
            )

    @property
    def beat_s(self) -> float:
        """How often members should speak."""
        return self.lease_s / 6
