"""The systems whose recovery is measured, each started and watched from outside. Standard library only.

A subject is given a directory and a job, starts what it needs there, and is then hurt by whoever measures: workers are
found by the notes they leave at their birth, steps by the logs they write. What is its own is how it is started, how
it gets one worker more or fewer, and where its steps are written down.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.catalogue import ROOT
from benchmarks.commits import Commit, of_events, of_log
from benchmarks.runners.job import JOB_VARIABLE, Job
from benchmarks.runners.steplog import STOP, Birth, births

RESTARTS = 1000  # as many as it takes: what is measured is how long one takes


class Subject(ABC):
    """One run of one system. Everything it starts must be started within `processes.ending_orphans`."""

    name: str
    title: str
    package: str

    def __init__(self, python: Path, job: Job) -> None:
        self.python, self.job, self.directory = python, job, Path(job.directory)
        self._variables = {JOB_VARIABLE: str(job.save())}
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._count = 0

    @abstractmethod
    def begin(self, workers: int) -> None:
        """Start the system with `workers` workers. Does not wait for them."""

    @abstractmethod
    def grow(self) -> None:
        """Have one worker more join the run."""

    @abstractmethod
    def shrink(self) -> None:
        """Have one worker leave the run for good, as is usual with this system."""

    @abstractmethod
    def commits(self) -> list[Commit]:
        """All steps committed so far."""

    def workers(self) -> list[int]:
        """The process ids of the workers that are alive."""
        return sorted(pid for pid in births(self.directory) if _alive(pid))

    def births(self) -> dict[int, Birth]:
        """The births of all workers there ever were."""
        return births(self.directory)

    def trouble(self) -> str | None:
        """Why the run has ended, in one line; None while it goes on."""
        for process, log in self._started:
            if process.poll() is not None:
                return processes.Finished(process.returncode, 0.0, 0.0, log.read_text(errors="replace")).reason()
        return None

    def noticed(self, since: float) -> float | None:
        """Seconds from `since` until the system said that a worker was lost; None where it does not say so."""
        return None

    def summary(self) -> dict[str, Any]:
        """What the run says of itself, once it was stopped."""
        return {}

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the run; one that does not end in good order is killed by whoever runs it."""
        (self.directory / STOP).touch()

    def _start(self, command: list[str], **variables: str) -> None:
        self._count += 1
        log = self.directory / f"log-{self._count}.txt"
        self._started.append((processes.start(command, {**self._variables, **variables}, log), log))

    def _end_last(self) -> None:
        process, _ = self._started.pop()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class StepLogged(Subject):
    """A subject whose workers each write a step log."""

    def __init__(self, python: Path, job: Job) -> None:
        super().__init__(python, job)
        self._tails: dict[int, _Tail] = {}

    def commits(self) -> list[Commit]:
        for path in self.directory.glob("steps-*.log"):
            pid = int(path.stem.partition("-")[2])
            if pid not in self._tails:
                self._tails[pid] = _Tail(path, partial(of_log, pid=pid))
        return [commit for tail in self._tails.values() for commit in tail.read()]


class Torchrun(StepLogged):
    """DDP under `torchrun --max-restarts`: whoever dies, all are started again, from the checkpoint."""

    name, title, package = "torchrun", "torchrun --max-restarts", "torch"
    _module = "benchmarks.runners.recovery_ddp"

    def begin(self, workers: int) -> None:
        if workers == self.job.workers:
            options = ["--standalone", "--nproc-per-node", str(workers)]
            self._start(self._command(options))
            return
        # some are to join later: as many agents of one worker each as there are now
        self._endpoint = f"127.0.0.1:{_free_port()}"
        for _ in range(workers):
            self.grow()

    def grow(self) -> None:
        elastic = [
            "--nnodes", f"1:{self.job.workers}", "--nproc-per-node", "1", "--rdzv-backend", "c10d",
            "--rdzv-id", "recovery", "--rdzv-endpoint", self._endpoint, "--rdzv-conf", "last_call_timeout=3",
        ]  # fmt: skip
        self._start(self._command(elastic))

    def shrink(self) -> None:
        self._end_last()

    def _command(self, options: list[str]) -> list[str]:
        # a store shared with the agent hands restarted workers the addresses of the dead ones (pytorch issue 135712)
        self._variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        restarts = ["--max-restarts", str(RESTARTS)]
        return [str(self.python), "-m", "torch.distributed.run", *options, *restarts, "--module", self._module]


class Torchft(StepLogged):
    """torchft's Manager over gloo: a lighthouse, and a replica group of one worker under a torchrun each."""

    name, title, package = "torchft", "torchft", "torchft"
    _module = "benchmarks.runners.recovery_torchft"

    def begin(self, workers: int) -> None:
        port = _free_port()
        self._address = f"http://localhost:{port}"
        lighthouse = str(self.python.with_name("torchft_lighthouse"))
        # as its README has it, but for the address
        options = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
        self._start([lighthouse, "--bind", f"[::]:{port}", *options])
        for _ in range(workers):
            self.grow()

    def grow(self) -> None:
        options = ["--standalone", "--nproc-per-node", "1", "--max-restarts", str(RESTARTS)]
        command = [str(self.python), "-m", "torch.distributed.run", *options, "--module", self._module]
        replica = len(self._started) - 1  # the first is the lighthouse
        self._start(command, REPLICA_GROUP_ID=str(replica), TORCHFT_LIGHTHOUSE=self._address)

    def shrink(self) -> None:
        self._end_last()


class Shoal(Subject):
    """`shoal train`, with settings as they are by default but for the number of replacements."""

    name, title, package = "shoal", "Shoal", "shoal"
    _script = ROOT / "benchmarks/runners/recovery_shoal.py"

    def __init__(self, python: Path, job: Job) -> None:
        super().__init__(python, job)
        self.run_dir = self.directory / "run"
        self._events = _Tail(self.run_dir / "events.jsonl", lambda lines: [json.loads(line) for line in lines])
        self._size = 0

    def begin(self, workers: int) -> None:
        self._size = workers
        options = ["--workers", str(workers), "--run-dir", str(self.run_dir), "--json"]
        settings = ["--set", "threads=1", "--set", f"elastic.max_restarts={RESTARTS}"]
        self._start([self._shoal, "train", str(self._script), *options, *settings])

    def grow(self) -> None:
        self._scale(self._size + 1)

    def shrink(self) -> None:
        self._scale(self._size - 1)

    def commits(self) -> list[Commit]:
        return of_events(self._events.read())

    def stop(self, timeout_s: float = 30.0) -> None:
        """Let the run end in good order, so that its summary is there. Raises where it does not."""
        super().stop(timeout_s)
        if self._started[0][0].wait(timeout_s):
            raise RuntimeError(self.trouble())

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return found

    def noticed(self, since: float) -> float | None:
        # a fault is told once its stack was taken; the survivors may have gone on without the lost one by then
        known = [one["time"] for one in self._events.read() if one["kind"] in ("fault", "member_lost", "view")]
        return min((time - since for time in known if time > since), default=None)

    @property
    def _shoal(self) -> str:
        return str(self.python.with_name("shoal"))

    def _scale(self, workers: int) -> None:
        command = [self._shoal, "scale", str(self.run_dir), "--workers", str(workers)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"shoal scale: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        self._size = workers


SUBJECTS: dict[str, type[Subject]] = {subject.name: subject for subject in (Shoal, Torchrun, Torchft)}


@dataclass
class _Tail:
    """The lines of a growing file, each parsed once."""

    path: Path
    parse: Callable[[list[str]], list[Any]]
    _offset: int = 0
    _parsed: list[Any] = field(default_factory=list)

    def read(self) -> list[Any]:
        """Everything so far. A line that is still being written is left for the next time."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._offset += len(whole) + 1
                self._parsed += self.parse(whole.decode().splitlines())
        return self._parsed


def why_not(python: Path, subject: type[Subject]) -> str | None:
    """Why `subject` cannot run with the environment of `python`, in one line; None where it can."""
    if subject is Torchft:
        probe = "import torchft; torchft.Manager, torchft.ProcessGroupGloo"
        if shutil.which(python.with_name("torchft_lighthouse")) is None:
            return "torchft is not installed: run benchmarks/setup_peers.sh"
    else:
        probe = "import shoal; shoal.Trainer" if subject is Shoal else "import torch.distributed.run"
    done = subprocess.run(
        [str(python), "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    return (done.stderr.strip().splitlines() or ["probe failed"])[-1] if done.returncode else None


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
