"""The engine `local`: all cores of this machine, a process each."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.data.preparing.attempts import Attempts
from shoal.data.preparing.engine import Engine, NothingEnds, Say
from shoal.data.preparing.task import Result, Task
from shoal.data.preparing.worker import LENGTH, write_frame

_ENDS_WITHIN_S = 10.0
_CHUNK = 1 << 16


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine(Engine):
    """`processes` workers, started when there is something to do."""

    name = "local"
    shares_disk = True

    def __init__(self, processes: int, say: Say = lambda words: None) -> None:
        assert processes >= 1
        self._processes, self._say = processes, say
        self._workers: list[_Worker] = []

    @property
    def slots(self) -> int:
        return self._processes

    @property
    def pids(self) -> list[int]:
        """Of the workers that live."""
        return [worker.process.pid for worker in self._workers]

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        attempts, waiting = Attempts(tasks, self._say), deque(range(len(tasks)))
        with selectors.DefaultSelector() as ready:
            try:
                left = len(tasks)
                while left:
                    self._hand_out(tasks, waiting, ready)
                    heard = ready.select(self.silence_s)
                    if not heard:
                        raise NothingEnds((tasks[key.data.number] for key in ready.get_map().values()), self.silence_s)
                    for key, _ in heard:
                        answered = self._hear(attempts, key.data, waiting, ready)
                        if answered is not None:
                            left -= 1
                            yield answered
            finally:
                if any(worker.number is not None for worker in self._workers):
                    self.close()  # broken off: what still runs is not wanted

    def _hand_out(self, tasks: Sequence[Task], waiting: deque[int], ready: Any) -> None:
        busy = sum(worker.number is not None for worker in self._workers)
        while waiting and busy < self._processes:
            number = waiting.popleft()
            worker = next((worker for worker in self._workers if worker.number is None), None)
            if worker is None:
                worker = _Worker()
                self._workers.append(worker)
            ready.register(worker.answers, selectors.EVENT_READ, worker)
            worker.ask(number, tasks[number])
            busy += 1

    def _hear(self, attempts: Attempts, worker: _Worker, waiting: deque[int], ready: Any) -> tuple[int, Result] | None:
        """Take what a worker has to say: the answer if it is complete, else None."""
        answer = worker.hear()
        if answer is None:
            return None
        ready.unregister(worker.answers)
        assert worker.number is not None
        number, worker.number = worker.number, None
        if "ended" in answer:
            self._workers.remove(worker)
            worker.end()
        result = attempts.judge(number, answer)
        if result is None:
            waiting.append(number)
            return None
        return number, result

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Worker:
    """A process, the task that it works on (None: it has nothing to do), and as much as it has said of the answer."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        # a session of its own, so that Ctrl-C is heard by one process only
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal.data.preparing.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.answers = self.process.stdout
        self.number: int | None = None
        self._said = bytearray()

    def ask(self, number: int, task: Task) -> None:
        import cloudpickle

        assert self.process.stdin is not None
        self.number = number
        with contextlib.suppress(BrokenPipeError):  # it has died: that is heard
            write_frame(self.process.stdin, cloudpickle.dumps(task))  # type: ignore[arg-type] # a pipe of bytes

    def hear(self) -> dict[str, Any] | None:
        part = os.read(self.answers.fileno(), _CHUNK)
        if not part:
            try:
                status = self.process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:  # it says nothing more, and does not end either
                self.process.kill()
                status = self.process.wait()
            cause = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            hint = " (if nobody did that, the machine had no memory left)" if status == -signal.SIGKILL else ""
            return {"ended": True, "failed": f"its process {cause}{hint}"}
        self._said += part
        if len(self._said) < LENGTH.size:
            return None
        (nbytes,) = LENGTH.unpack_from(self._said)
        if len(self._said) < LENGTH.size + nbytes:
            return None
        answer: dict[str, Any] = json.loads(self._said[LENGTH.size :])
        self._said.clear()
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
