"""Stateless loader processes: asked a question, they answer with a batch.

Torch's DataLoader would do most of this, but not what a run must promise. When one of its processes dies, it
raises in the main thread wherever that is, be it in the middle of an update; killed at the wrong moment, it
leaves files in /dev/shm; and an answer that cannot be pickled is lost, and waited for. Here answers go through
a socket pair that only the two processes hold, tensors as raw bytes.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import Tensor

from shoal.core.errors import ShoalError
from shoal.data.source import Batch

Q = TypeVar("Q")

QUESTIONS_AHEAD = 2  # for each process: one that it works on, one to go on with
TRIES = 3  # for a question: one of which so many processes died is what kills them
KILLED_WITHIN_S = 5.0  # a killed process is gone at once, unless the kernel holds it in a read from a lost disk
_LENGTH = struct.Struct("<Q")
_OURS = str(Path(__file__).parents[1])


class LoaderProcesses(Generic[Q]):
    """An iterator over (question, answer), in the order of `questions`, which must be small.

    Processes are forked when the object is made, so that data is neither pickled nor copied. They use one
    thread each and end with `close`, with the last answer, or with the process that made them, however it
    ends. Ctrl-C does not reach them: who asks decides when to stop. What `answer` raises is raised here as it
    was, with the loader process's traceback as a note.

    A process that dies is replaced, since it has no state: what it was asked and has not answered is asked again, and
    `tell` is given a line about it. Raises `ShoalError` when as many as `TRIES` died of the same question, or when one
    is silent for `timeout_s`; `describe` then puts the question in words.
    """

    def __init__(
        self,
        answer: Callable[[Q], Batch],
        questions: Iterable[Q],
        *,
        count: int,
        timeout_s: float,
        describe: Callable[[Q], str] = str,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._answer, self._questions = answer, iter(questions)
        self._timeout_s, self._describe, self._tell = timeout_s, describe, tell
        self._asked: deque[tuple[Q, _Worker]] = deque()
        self._died = 0  # of the question whose answer is awaited
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(_Worker.start(answer, timeout_s))
            for _ in range(QUESTIONS_AHEAD):
                for worker in self._workers:
                    self._ask(worker)
        except BaseException:
            self.close()
            raise

    def _ask(self, worker: _Worker) -> None:
        for question in self._questions:
            self._asked.append((question, worker))
            self._send(question, worker)
            return

    def _send(self, question: Q, worker: _Worker) -> None:
        try:
            _send(worker.socket, question)
        except TimeoutError as error:
            self._give_up(question, f"{worker} was silent for {self._timeout_s:g} s", error)
        except OSError:
            pass  # it is dead: what it has answered before is read first, then it is replaced

    def __iter__(self) -> Iterator[tuple[Q, Batch]]:
        return self

    def __next__(self) -> tuple[Q, Batch]:
        if not self._asked:
            self.close()
            raise StopIteration
        answer: Any = None
        while True:
            question, worker = self._asked[0]
            try:
                answer = _receive(worker.socket)
                break
            except TimeoutError as error:
                self._give_up(question, f"{worker} was silent for {self._timeout_s:g} s", error)
            except (OSError, EOFError) as error:
                self._replace(question, worker, error)
        self._asked.popleft()
        self._died = 0
        if isinstance(answer, _Failed):
            self.close()
            raise answer.error
        self._ask(worker)
        return question, answer

    def _replace(self, question: Q, dead: _Worker, error: Exception) -> None:
        """Start another process in the place of one that died of `question`, the first that it had left to answer."""
        self._died += 1
        how = f"{dead} {dead.end()}"
        if self._died >= TRIES:
            self._give_up(question, f"{how}, and so did {self._died - 1} before it", error)
        dead.socket.close()
        new = _Worker.start(self._answer, self._timeout_s)
        self._workers[self._workers.index(dead)] = new
        self._asked = deque((asked, new if worker is dead else worker) for asked, worker in self._asked)
        for asked, worker in list(self._asked):
            if worker is new:
                self._send(asked, worker)
        self._tell(
            f"{how} while it loaded {self._describe(question)}: another takes its place and loads the same again"
        )

    def _give_up(self, question: Q, how: str, error: Exception) -> NoReturn:
        self.close()
        raise ShoalError(
            f"{how} while it loaded {self._describe(question)}.\n"
            "Try `--set loader.processes=0` to load in the worker itself, where the cause can be seen."
        ) from error

    def close(self) -> None:
        """End the processes and drop what they have read ahead. May be called twice."""
        self._asked.clear()
        for worker in self._workers:
            worker.process.kill()  # it has no state and shares nothing
        for worker in self._workers:
            worker.process.join(KILLED_WITHIN_S)
            worker.socket.close()
        self._workers = []


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    socket: socket.socket

    def __str__(self) -> str:
        return f"the loader process {self.process.pid}"

    def end(self) -> str:
        """How it has ended. A process that has only closed its socket is ended."""
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join(KILLED_WITHIN_S)
            return "closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"ended with {code}"

    @classmethod
    def start(cls, answer: Callable[[Any], Batch], timeout_s: float) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            process = multiprocessing.get_context("fork").Process(
                target=_serve, args=(answer, ours, theirs, os.getpid()), name="shoal-loader", daemon=True
            )
            # blocked until it is ignored, so that it never ends a process that has only begun
            signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        ours.settimeout(timeout_s)
        return cls(process, ours)


@dataclass(frozen=True)
class _Failed:
    """What was raised in a loader process, on its way to the process that asked."""

    error: Exception


def _serve(answer: Callable[[Any], Batch], ours: socket.socket, theirs: socket.socket, parent: int) -> None:
    """The life of a loader process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ours.close()
    _end_with(parent)
    torch.set_num_threads(1)  # those of OpenMP were not forked: waiting for them would be for ever
    while True:
        try:
            question = _receive(theirs)
        except (OSError, EOFError):
            return
        try:
            message = _pack(answer(question))
        except Exception as error:
            error.add_note(f"in a loader process:\n{_place_of(error)}")
            message = _pack(_Failed(_that_can_travel(error)))
        try:
            for part in message:
                theirs.sendall(part)
        except OSError:
            return


def _place_of(error: Exception) -> str:
    """Where the user's code raised `error`, and out of what: neither survives pickling."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    because = ["caused by:\n", *traceback.format_exception(cause)] if cause is not None else []
    return "".join([*traceback.format_list(frames), *because]).rstrip("\n")


def _that_can_travel(error: Exception) -> Exception:
    """`error` itself where it survives pickling, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:
        told = RuntimeError(f"{type(error).__qualname__}: {error}")
        for note in error.__notes__:
            told.add_note(note)
        return told
    return error


def _end_with(parent: int) -> None:
    """End this process as soon as its parent is gone.

    The copies of the parent's sockets in here would otherwise keep its peers from noticing.
    """
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:  # it is another process by now
        os._exit(1)

    def watch() -> None:
        select.select([watched], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="shoal-parent-watch").start()


# ---- messages: a length, a pickle in which each tensor is (dtype, shape), then the bytes of the tensors ----


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return None
        self.tensors.append(value)
        return value.dtype, tuple(value.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []

    def persistent_load(self, pid: Any) -> Any:
        dtype, shape = pid
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]


def _pack(value: Any) -> list[memoryview]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    header = file.getvalue()
    tensors = [_bytes_of(tensor.detach()) for tensor in pickler.tensors]
    return [memoryview(_LENGTH.pack(len(header)) + header), *tensors]


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _send(to: socket.socket, value: Any) -> None:
    for part in _pack(value):
        to.sendall(part)


def _receive(source: socket.socket) -> Any:
    """Raises `EOFError` when the other side is gone, `TimeoutError` when it is silent too long."""
    length = bytearray(_LENGTH.size)
    _fill(memoryview(length), source)
    header = bytearray(_LENGTH.unpack(length)[0])
    _fill(memoryview(header), source)
    unpickler = _Unpickler(io.BytesIO(header))
    value = unpickler.load()
    for tensor in unpickler.tensors:
        _fill(_bytes_of(tensor), source)
    return value


def _fill(buffer: memoryview, source: socket.socket) -> None:
    while buffer:
        received = source.recv_into(buffer)
        if received == 0:
            raise EOFError
        buffer = buffer[received:]
