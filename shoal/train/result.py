"""What a run gives to the script that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """What a run gave: its summary, as in `summary.json`, and where its directory is."""

    summary: Mapping[str, Any]
    run_dir: Path

    @property
    def final(self) -> dict[str, float]:
        """The last losses and metrics: ``train_loss``, ``test_loss``, ``test_accuracy`` …"""
        return dict(self.summary["final"])

    @property
    def status(self) -> str:
        return str(self.summary["status"])
