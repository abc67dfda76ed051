"""Loading batches in the order of the run: in this process, or ahead of time in processes of their own."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from shoal.core.cursor import Batches
from shoal.core.order import Indices
from shoal.data.processes import LoaderProcesses
from shoal.data.source import Batch, Source


@dataclass(frozen=True)
class Request:
    """Positions ``[start, stop)`` of the order of `epoch`."""

    epoch: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        assert self.epoch >= 0
        assert 0 <= self.start < self.stop, f"{self} asks for nothing"


@dataclass(frozen=True)
class Loaded:
    """What was asked for: the samples' numbers, in order, and the samples."""

    request: Request
    indices: Indices
    batch: Batch


class Loader:
    """Loads what is requested from `source` in the order that (seed, epoch) gives. Used from one thread.

    The batches are the same bits for any number of `processes`; 0 loads in this one. `batches` is how the run cuts the
    samples. `timeout_s` is how long a stream waits for a loader process that is silent.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        shuffle: bool = True,
        processes: int = 0,
        *,
        batches: Batches | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        assert processes >= 0
        self.source, self.order = source, source.order(seed, shuffle, batches)
        self._seed = seed
        self._processes, self._timeout_s = processes, timeout_s
        self._open: list[LoaderProcesses[Request]] = []

    def indices(self, request: Request) -> Indices:
        """The numbers of the requested samples, in order."""
        samples = len(self.source)
        assert request.stop <= samples, f"{request} is past the end of {samples} samples"
        return self.order.at(request.epoch, request.start, request.stop)

    def load(self, request: Request) -> Loaded:
        """Load one batch in this process."""
        indices = self.indices(request)
        return Loaded(request, indices, self.source.fetch(indices, request.epoch, self._seed))

    def stream(self, requests: Iterable[Request]) -> Generator[Loaded, None, None]:
        """Yield what each request asks for, in order.

        Requests are drawn only as they can be worked on: one at a time in this process, else two ahead for
        each loader process. The processes end with the stream, whether it is used up, closed or dropped.
        """
        if self._processes == 0:
            return (self.load(request) for request in requests)
        return self._stream_from_processes(requests)

    def _stream_from_processes(self, requests: Iterable[Request]) -> Generator[Loaded, None, None]:
        processes = LoaderProcesses(
            lambda request: self.load(request).batch,
            requests,
            count=self._processes,
            timeout_s=self._timeout_s,
        )
        self._open.append(processes)
        try:
            for request, batch in processes:
                yield Loaded(request, self.indices(request), batch)
        finally:
            processes.close()
            self._open.remove(processes)

    def close(self) -> None:
        """End the processes of all streams, which then have no more batches. May be called twice."""
        for processes in list(self._open):
            processes.close()
