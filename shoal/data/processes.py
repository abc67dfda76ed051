"""Stateless loader processes: asked for (epoch, indices), they answer with a batch."""

from __future__ import annotations

import os
import select
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from shoal.core.errors import ShoalError
from shoal.core.order import Indices
from shoal.data.source import Batch, Source

T = TypeVar("T")
Asked = tuple[int, Indices]  # epoch, samples

BATCHES_AHEAD = 2  # for each process


@dataclass(frozen=True)
class _Failed:
    """What `fetch` raised in a loader process, on its way to the process that asked."""

    error: Exception


class LoaderProcesses(Generic[T]):
    """An iterator over the answers to `asked` (tag, epoch, indices), as (tag, indices, batch), in that order.

    Processes are forked when the object is made, use one thread each, and end with `close`, with the last
    answer, or with the process that made them, however it ends. Ctrl-C does not reach them: who asks decides
    when to stop. An error of `fetch` is raised here as it was, with the loader process's traceback as a note.
    Raises `ShoalError` when a process dies or an answer takes longer than `timeout_s`.

    Answers come through pipes that only this process and its own children hold, by torch's multiprocessing.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        asked: Iterable[tuple[T, int, Indices]],
        *,
        count: int,
        timeout_s: float,
    ) -> None:
        self._waiting: deque[tuple[T, Indices]] = deque()
        self._closed = False
        parent = os.getpid()
        loader: DataLoader[Any] = DataLoader(
            _Answers(source, seed),
            batch_size=None,
            sampler=self._draw(asked),
            collate_fn=_as_it_is,
            num_workers=count,
            prefetch_factor=BATCHES_AHEAD,
            timeout=timeout_s,
            # forked, so that the dataset is neither pickled nor copied
            multiprocessing_context="fork",
            worker_init_fn=lambda _: _begin(parent),
            # otherwise it draws a seed from the default generator of this process
            generator=torch.Generator(),
        )
        self._answers: Any = iter(loader)

    def _draw(self, asked: Iterable[tuple[T, int, Indices]]) -> Iterator[Asked]:
        for tag, epoch, indices in asked:
            self._waiting.append((tag, indices))
            yield epoch, indices

    def __iter__(self) -> Iterator[tuple[T, Indices, Batch]]:
        return self

    def __next__(self) -> tuple[T, Indices, Batch]:
        if self._closed:
            raise StopIteration
        try:
            answer = next(self._answers)
        except StopIteration:
            self.close()
            raise
        except RuntimeError as error:
            self.close()
            samples = self._waiting[0][1] if self._waiting else ()
            raise ShoalError(
                f"a loader process did not deliver {len(samples)} samples: {error}\n"
                "Try `--set loader.processes=0` to read them where an error or a stop can be seen."
            ) from error
        tag, indices = self._waiting.popleft()
        if isinstance(answer, _Failed):
            self.close()
            raise answer.error
        return tag, indices, answer

    def close(self) -> None:
        """End the processes and drop what they have read ahead. May be called twice."""
        if not self._closed:
            self._closed = True
            # what its __del__ calls, without waiting for the garbage collector
            self._answers._shutdown_workers()
            self._answers = None


class _Answers(Dataset[Any]):
    def __init__(self, source: Source, seed: int) -> None:
        self._source, self._seed = source, seed

    def __getitem__(self, asked: Asked) -> Any:
        epoch, indices = asked
        try:
            batch = self._source.fetch(indices, epoch, self._seed)
            _refuse_what_cannot_travel(batch)
        except Exception as error:
            error.add_note(f"in a loader process:\n{''.join(traceback.format_exception(error))}")
            try:
                ForkingPickler.loads(ForkingPickler.dumps(error))
            except Exception:
                raise error from None  # torch sends its type and text
            return _Failed(error)
        return batch


def _refuse_what_cannot_travel(batch: Batch) -> None:
    """A batch that cannot be pickled would get lost on its way, and be waited for."""
    if isinstance(batch, tuple | list):
        for part in batch:
            _refuse_what_cannot_travel(part)
    elif isinstance(batch, dict):
        _refuse_what_cannot_travel(list(batch.values()))
    elif not isinstance(batch, torch.Tensor | int | float | str | bytes | None):
        raise TypeError(
            f"the dataset's collate returns {type(batch).__name__}: with loader.processes a batch is a "
            "tuple, list or dict of tensors, numbers and strings"
        )


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _begin(parent: int) -> None:
    """First thing in a loader process. It runs one torch thread already: after a fork, more would hang."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:  # it is another process by now
        os._exit(1)
    threading.Thread(target=_end_with, args=(watched,), daemon=True, name="shoal-parent-watch").start()


def _end_with(process: int) -> None:
    """Leave at once when the process behind this descriptor is gone.

    The copies of its sockets in here would otherwise keep its peers from noticing.
    """
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll()
    os._exit(1)
