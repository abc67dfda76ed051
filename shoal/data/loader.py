"""Loading batches in the order of the run: in this process, or ahead of time in processes of their own."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.core.cursor import Batches
from shoal.core.order import Indices
from shoal.data.processes import LoaderProcesses
from shoal.data.request import Batch, Loaded, Request
from shoal.data.source import Source

_NAMED = 8  # of the samples that a message is about
__all__ = ["Loaded", "Loader", "Request"]


class Loader:
    """Loads what is requested from `source` in the order that (seed, epoch) gives. Used from one thread.

    The batches are the same bits for any number of `processes`; 0 loads in this one. `batches` is how the run cuts the
    samples. `timeout_s` is how long a stream waits for a loader process that is silent. `tell` is given a line where
    something went wrong and was mended: a loader process was killed and replaced.
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
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        assert processes >= 0
        self.source, self.order = source, source.order(seed, shuffle, batches)
        self._seed = seed
        self._processes, self._timeout_s, self._tell = processes, timeout_s, tell
        self._told_bytes = 0  # of what was fetched: what a loader process has told, or had when it was forked
        self._open: list[LoaderProcesses[Request | None]] = []
        self._streams: weakref.WeakSet[Generator[Loaded, None, None]] = weakref.WeakSet()

    def indices(self, request: Request) -> Indices:
        """The numbers of the requested samples, in order."""
        samples = len(self.source)
        assert request.stop <= samples, f"{request} is past the end of {samples} samples"
        return self.order.at(request.epoch, request.start, request.stop)

    def load(self, request: Request) -> Loaded:
        """Load one batch in this process."""
        indices = self.indices(request)
        return Loaded(request, indices, self.source.fetch(indices, request.epoch, self._seed))

    def stream(
        self, requests: Iterable[Request | None], *, epochs: int | None = None, ahead: bool = True
    ) -> Generator[Loaded, None, None]:
        """Yield what each request asks for, in order. None asks for nothing, and gives nothing.

        Requests are drawn only as they can be worked on: in this process one at a time, or as a source that reads in
        the background likes, unless `ahead` forbids that; else two ahead for each loader process. `epochs` is the
        number of epochs of the run, if that is known. Processes and threads end with the stream, whether it is used
        up, closed or dropped.
        """
        if self._processes == 0:
            asked = (request for request in requests if request is not None)
            stream = self.source.stream(self.order, self._seed, asked, epochs=epochs, ahead=ahead)
        else:
            stream = self._stream_from_processes(requests)
        self._streams.add(stream)
        return stream

    def _stream_from_processes(self, requests: Iterable[Request | None]) -> Generator[Loaded, None, None]:
        """Where the order has lanes, each process reads some of them: a request is cut into a part for each process,
        which come back in turn."""
        count = self._processes
        asked: deque[tuple[Request | None, int]] = deque()

        def questions() -> Iterator[Request | None]:
            for request in requests:
                if request is None:
                    asked.append((None, 1))
                    yield None
                    continue
                whole = [(request.start, request.stop)]
                grouped = self.source.grouped is not None  # then a request is a grain, which must not be cut
                parts = whole if grouped else self.order.split(request.start, request.stop, count) or whole
                asked.append((request, len(parts)))
                for start, stop in parts:
                    yield Request(request.epoch, start, stop) if start < stop else None

        self._told_bytes = self.source.read_elsewhere
        processes = LoaderProcesses(
            self._answer,
            questions(),
            count=count,
            timeout_s=self._timeout_s,
            describe=self._describe,
            tell=self._tell,
        )
        self._open.append(processes)
        try:
            answers = (answer for _, answer in processes)
            for first in answers:
                request, parts = asked.popleft()
                if request is not None:
                    yield self._joined(request, [first, *itertools.islice(answers, parts - 1)])
        finally:
            processes.close()
            self._open.remove(processes)

    def _describe(self, request: Request | None) -> str:
        """Which samples a request asks for, in words."""
        if request is None:
            return "no sample"
        numbers = [str(number) for number in self.indices(request)[:_NAMED].tolist()]
        count = request.stop - request.start
        more = f" and {count - _NAMED} more" if count > _NAMED else ""
        several = "s" if count > 1 else ""
        return f"sample{several} {', '.join(numbers)}{more} of epoch {request.epoch + 1}"

    def _answer(self, request: Request | None) -> tuple[Any, Batch, int]:
        """In a loader process: the numbers of the samples, the samples, and the bytes that were fetched for them."""
        if request is None:
            return None, None, 0
        (loaded,) = self.source.stream(self.order, self._seed, [request], ahead=False)
        before, self._told_bytes = self._told_bytes, self.source.bytes_read
        return torch.from_numpy(loaded.indices.copy()), loaded.batch, self._told_bytes - before

    def _joined(self, request: Request, answers: Sequence[tuple[Any, Batch, int]]) -> Loaded:
        self.source.add_bytes_read(sum(nbytes for _, _, nbytes in answers))
        self._told_bytes = self.source.read_elsewhere  # for a loader process that takes another's place
        full = [(indices.numpy(), batch) for indices, batch, _ in answers if indices is not None and len(indices)]
        if not full:
            return Loaded(request, np.empty(0, np.int64), None)
        return Loaded(request, np.concatenate([indices for indices, _ in full]), join([batch for _, batch in full]))

    def close(self) -> None:
        """End the processes and threads of all streams, which then have no more batches. May be called twice."""
        for processes in list(self._open):
            processes.close()
        for stream in list(self._streams):
            stream.close()


def join(batches: Sequence[Batch]) -> Batch:
    """Several batches as one."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return {key: join([one[key] for one in batches]) for key in first}
    return type(first)(join(parts) for parts in zip(*batches, strict=True))
