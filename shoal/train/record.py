"""The running account of a run: what goes into its summary."""

from __future__ import annotations

import hashlib
import resource
import time
from typing import Any

import torch
from torch import nn

from shoal.core.coverage import CoverageTotals
from shoal.core.cursor import Cursor
from shoal.core.staleness import Aging, Staleness

WARMUP_STEPS = 10  # left out of samples_per_s: allocators, caches and clocks settle in them


class Account:
    """Adds up losses of an epoch, samples per second and bytes. The clock starts with the first step.

    `train_loss` is the loss of all samples of the epoch so far, each at the step that trained on it: a mean, or a sum
    where the loss is a sum. None before the first step of a run. It goes on with a checkpoint."""

    def __init__(self) -> None:
        self.epoch_loss = 0.0
        self.epoch_weight = 0.0
        self.train_loss: float | None = None
        self.bytes_sent = 0
        self._steps = 0
        self._timed_samples = 0
        self._timed_s = 0.0
        self._all_samples = 0
        self._all_s = 0.0
        self._last = 0.0

    def start(self) -> None:
        """Begin to time a step: what lies between two steps (evaluation, the user's code) does not count."""
        self._last = time.perf_counter()

    def step(self, loss_sum: float, weight: float, samples: int, bytes_sent: int) -> float:
        """Take note of a committed step; returns its seconds."""
        seconds = time.perf_counter() - self._last
        self._steps += 1
        self._all_samples += samples
        self._all_s += seconds
        if self._steps > WARMUP_STEPS:
            self._timed_samples += samples
            self._timed_s += seconds
        self._add(loss_sum, weight)
        self.bytes_sent += bytes_sent
        return seconds

    def restore(self, epoch_loss: float, epoch_weight: float) -> None:
        """Go on from what a checkpoint says of its epoch; one that was written before any step says nothing."""
        self.new_epoch()
        self.train_loss = None
        if epoch_loss or epoch_weight:
            self._add(epoch_loss, epoch_weight)

    def _add(self, loss_sum: float, weight: float) -> None:
        self.epoch_loss += loss_sum
        self.epoch_weight += weight
        self.train_loss = self.epoch_loss / self.epoch_weight if self.epoch_weight else self.epoch_loss

    def new_epoch(self) -> None:
        self.epoch_loss = self.epoch_weight = 0.0

    @property
    def samples_per_s(self) -> float:
        if self._timed_s > 0:
            return self._timed_samples / self._timed_s
        return self._all_samples / self._all_s if self._all_s > 0 else 0.0


def peak_memory_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parameters_sha256(module: nn.Module) -> str:
    """A digest of all parameters' bits, in the order of their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(module.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def summary(  # noqa: PLR0913 - as many facts as the file has
    *, strategy: str, workers: int, servers: int, cursor: Cursor, account: Account, values: dict[str, float],
    module: nn.Module, status: str, coverage: CoverageTotals, bytes_sent: int, peak_memory: int,
    spans: dict[str, float], seconds: float, faults: list[dict[str, Any]], staleness: Staleness | None = None,
    aging: Aging | None = None, bytes_read: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The content of `summary.json`. It speaks of staleness where updates can have any, and of the bytes of training
    data that the workers fetched where the source counts them."""
    final: dict[str, float] = {}
    told = staleness.summary(aging) if staleness is not None else None
    if account.train_loss is not None:
        final["train_loss"] = account.train_loss
    return {
        "strategy": strategy, "workers": workers, "servers": servers, "epochs": cursor.epoch, "steps": cursor.step,
        "samples": cursor.samples, "final": {**final, **values},
        "samples_per_s": round(account.samples_per_s, 1), "params_sha256": parameters_sha256(module),
        "status": status, "coverage": coverage.to_json(), "faults": faults, "bytes_sent": bytes_sent,
        "peak_memory_bytes": peak_memory, "seconds": round(seconds, 3),
        "spans": {name: round(value, 6) for name, value in sorted(spans.items())},
        **({"bytes_read": bytes_read} if bytes_read else {}),
        **({"staleness": told} if told is not None else {}),
    }  # fmt: skip
