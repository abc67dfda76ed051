"""``comm.codec=auto`` for pushes to servers: a worker times its first transactions and picks for itself.

A push and a pull differ: what is read comes as it is, whatever the codec. So only the time of pushing can be saved, and
all the rest of a step counts as computing. `choose` predicts an exchange between two: there, as here, a gradient is
sent once, and its payload once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
from torch import Tensor

from shoal.comm.codecs.choose import CANDIDATES, CodecChoice, Measured, choose, is_worth_trying
from shoal.comm.codecs.probe import measure_codec
from shoal.store.checking import Given
from shoal.store.kvstore import KVStore

_WARM_UP, _TIMED = 2, 3  # transactions without a codec before the choice
_ONE_LINK = 2  # members of a group in which as much is sent as to a server
_PINGS, _TRIES = 3, 2
_ENOUGH_BYTES = 2 << 20  # shows the bandwidth
_SHORTEST_S = 1e-6


class PushChoice:
    """Sees transactions without a codec, until it has decided. For one thread."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.choice: CodecChoice | None = None
        self._workers = 1
        self._seen: dict[str, Tensor] = {}  # the gradients of the transaction before
        self._steps: list[tuple[float, float]] = []  # seconds of the whole step, and of its push
        self._since: float | None = None  # the end of the transaction before

    def meet(self, workers: int) -> None:
        """So many workers push from now on. The time since the last transaction says nothing."""
        self._workers, self._since = workers, None

    def see(self, name: str, gradient: Tensor) -> None:
        """This is pushed."""
        if self.choice is None and len(self._steps) == _WARM_UP + _TIMED - 1:
            self._seen[name] = gradient.clone()

    def note(self, wait_s: float | None) -> None:
        """A transaction is committed; its push took so long."""
        if self.choice is not None:
            return
        now, since = time.perf_counter(), self._since
        self._since = now
        if since is not None and wait_s is not None:
            self._steps.append((now - since, wait_s))

    @property
    def due(self) -> bool:
        """Whether enough is known for `decide`."""
        return self.choice is None and bool(self._seen) and len(self._steps) >= _WARM_UP + _TIMED

    def decide(self, transaction: str) -> CodecChoice:
        """Measure link and codecs, and choose. `transaction` begins now."""
        gradients = {name: gradient.float() for name, gradient in self._seen.items()}
        sent = sum(gradient.nbytes for gradient in self._seen.values())
        bandwidth, latency_s = self._measure_link(f"{transaction}/{uuid.uuid4().hex}")
        timed = self._steps[_WARM_UP:]
        measured = Measured(
            compute_s=median(step_s - wait_s for step_s, wait_s in timed),
            gradient_bytes=sent,
            bandwidth=bandwidth,
            latency_s=latency_s,
            exposed_s=median(wait_s for _, wait_s in timed),
        )
        if is_worth_trying(measured, _ONE_LINK):
            given = [(name, gradient.reshape(self._shape(name))) for name, gradient in gradients.items()]
            costs = tuple(measure_codec(name, given, sent, self._workers) for name in CANDIDATES)
            measured = replace(measured, costs=costs)
        self.choice = choose(measured, _ONE_LINK)
        self._seen.clear()
        return self.choice

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._kv.slices(name)[0].key.shape

    def _measure_link(self, transaction: str) -> tuple[float, float]:
        """The bandwidth (bytes/s) and the latency (s) of staging. What is staged for that is dropped."""
        latency_s = min(_seconds_of(self._kv.progress) for _ in range(_PINGS))
        load: dict[str, Given] = {}
        size = 0
        by_size = sorted(self._seen.items(), key=lambda one: one[1].nbytes)
        enough = [one for one in by_size if one[1].nbytes >= _ENOUGH_BYTES][:1]
        for name, gradient in enough or by_size:
            load[name] = np.zeros(gradient.numel(), dtype=gradient.numpy().dtype)
            size += gradient.nbytes
        load_s = min(_seconds_of(lambda: self._kv.wait(self._kv.stage(transaction, 0, load))) for _ in range(_TRIES))
        self._kv.drop(transaction)
        return size / max(load_s - latency_s, _SHORTEST_S), latency_s


def _seconds_of(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin
