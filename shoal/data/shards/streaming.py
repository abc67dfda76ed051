"""Batches made in the background, a few chunks of requests ahead of whoever takes them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

from shoal.data.request import Loaded, Request

_CHUNK = 16384  # samples that are made at once, where they are small
_CHUNKS = 3  # asked for and not yet taken
_JOINED_WITHIN_S = 5.0

Assemble = Callable[[list[Request], Callable[[], bool]], "list[Loaded] | None"]


@dataclass(frozen=True)
class _Raised:
    error: BaseException


def stream_inline(assemble: Assemble, requests: Iterable[Request]) -> Generator[Loaded, None, None]:
    """One request at a time, in this thread; only windows are read in the background."""
    for request in requests:
        made = assemble([request], lambda: False)
        assert made is not None
        yield made[0]


def stream_ahead(
    assemble: Assemble, requests: Iterable[Request], sample_bytes: float, chunk_bytes: float,
    finish: Callable[[], None], wake: Callable[[], None],
) -> Generator[Loaded, None, None]:  # fmt: skip
    """Make batches in a thread of its own. Requests are drawn in the caller's thread, in chunks of one epoch that begin
    small, so that the first batch comes at once. The thread ends with the stream, however that ends."""
    most = max(1, min(_CHUNK, int(chunk_bytes / sample_bytes)))
    asked: queue.SimpleQueue[list[Request] | None] = queue.SimpleQueue()
    made: queue.SimpleQueue[list[Loaded] | _Raised] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        while (chunk := asked.get()) is not None and not stopped.is_set():
            try:
                answer = assemble(chunk, stopped.is_set)
            except BaseException as error:
                made.put(_Raised(error))
                return
            if answer is None:
                return
            made.put(answer)

    thread: threading.Thread | None = None
    chunks, under_way = _chunks(iter(requests), most), deque[int]()
    try:
        while True:
            while len(under_way) < _CHUNKS and (chunk := next(chunks, None)) is not None:
                asked.put(chunk)
                under_way.append(len(chunk))
                if thread is None:
                    thread = threading.Thread(target=work, daemon=True, name="shoal-batches")
                    thread.start()
            if not under_way:
                return
            answer = made.get()
            under_way.popleft()
            if isinstance(answer, _Raised):
                raise answer.error
            yield from answer
    finally:
        stopped.set()
        asked.put(None)
        wake()
        if thread is not None:
            thread.join(_JOINED_WITHIN_S)
        finish()


def _chunks(requests: Iterator[Request], most: int) -> Iterator[list[Request]]:
    """Requests of one epoch, together about `most` samples at last and few at first."""
    aim, held, samples = 1, list[Request](), 0
    for request in requests:
        if held and request.epoch != held[0].epoch:
            yield held
            held, samples = [], 0
        held.append(request)
        samples += request.stop - request.start
        if samples >= aim:
            yield held
            aim, held, samples = min(most, samples * 2), [], 0
    if held:
        yield held
