"""Where the two runs of a drill take place: this machine, or several hosts made on it."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from shoal.core.errors import UserError
from shoal.drill.hands import Hands, SignalHands
from shoal.drill.hosts import Hosts, HostsUnavailable
from shoal.drill.process import TrainProcess

PROGRAM = (sys.executable, "-m", "shoal")
PORT = 47770  # on a namespace of our own, so it is free


class Ground(ABC):
    """Starts runs and looks after what they need besides. Use in a ``with`` statement."""

    @abstractmethod
    def start(self, script: str, workers: int, run_dir: Path, words: Sequence[str]) -> TrainProcess:
        """Start `shoal train`. `words`: its options besides workers and directory, and the script's own. What it says
        goes to a file beside its directory."""

    @abstractmethod
    def hands(self, process: TrainProcess, run_dir: Path) -> Hands:
        """What can hurt that run."""

    def tend(self) -> None:  # noqa: B027 - one machine needs no tending
        """Called often while a run goes on: do what is due."""

    def finish(self) -> None:  # noqa: B027
        """The run is over: end what was beside it."""

    def close(self) -> None:
        """Give back what was made."""
        self.finish()

    def __enter__(self) -> Ground:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OneMachine(Ground):
    """All workers on this machine. `program`: what comes before ``train``'s own words."""

    def __init__(self, program: Sequence[str] = (*PROGRAM, "train")) -> None:
        self._program = program

    def start(self, script: str, workers: int, run_dir: Path, words: Sequence[str]) -> TrainProcess:
        own = ("--workers", str(workers), "--run-dir", str(run_dir))
        return TrainProcess([*self._program, script, *own, *words], run_dir.with_suffix(".log"))

    def hands(self, process: TrainProcess, run_dir: Path) -> Hands:
        return SignalHands(lambda: {process.pid}, run_dir)


class HostHands(SignalHands):
    """Signals, and the cables of hosts."""

    def __init__(self, ground: NamespaceHosts, process: TrainProcess, run_dir: Path) -> None:
        super().__init__(lambda: {process.pid, *(one.pid for one in ground.joined.values())}, run_dir)
        self._hosts = ground.hosts

    def host_name(self, host: int) -> str:
        return self._hosts[host].name

    def cut(self, host: int) -> bool:
        with contextlib.suppress(HostsUnavailable):
            self._hosts.cut(self._hosts[host])
            return True
        return False

    def mend(self, host: int) -> None:
        with contextlib.suppress(HostsUnavailable):
            self._hosts.mend(self._hosts[host])


class NamespaceHosts(Ground):
    """So many hosts, each a network namespace with a link of its own. The run starts on the first, the others join; one
    that has left the run while it goes on joins again, as its owner would have it.

    Raises UserError that says why, where hosts cannot be made.
    """

    def __init__(self, count: int) -> None:
        try:
            self.hosts = Hosts(count)
        except HostsUnavailable as reason:
            raise UserError(
                f"--hosts {count}: hosts cannot be made on this machine ({reason}); leave out --hosts and the fault cut"
            ) from None
        self.joined: dict[int, TrainProcess] = {}
        self._run: tuple[Path, int] | None = None  # its directory, workers of each other host

    def start(self, script: str, workers: int, run_dir: Path, words: Sequence[str]) -> TrainProcess:
        each = max(1, workers // len(self.hosts))
        home, rest = max(1, workers - each * (len(self.hosts) - 1)), list(words)
        at = rest.index("--") if "--" in rest else len(rest)
        rest[at:at] = ["--listen", f"{self.hosts[0].address}:{PORT}"]
        own = ("--workers", str(home), "--run-dir", str(run_dir))
        self._run = (run_dir, each)
        return TrainProcess(self.hosts[0].command(*PROGRAM, "train", script, *own, *rest), run_dir.with_suffix(".log"))

    def hands(self, process: TrainProcess, run_dir: Path) -> Hands:
        return HostHands(self, process, run_dir)

    def tend(self) -> None:
        if self._run is None:
            return
        run_dir, each = self._run
        if not (run_dir / "coordinator.json").exists():
            return  # there is nothing to join yet
        for number in range(1, len(self.hosts)):
            joined = self.joined.get(number)
            if joined is None or joined.status() is not None:
                host = self.hosts[number]
                address = f"{self.hosts[0].address}:{PORT}"
                words = ("join", address, "--key-file", str(run_dir / "key"), "--workers", str(each))
                self.joined[number] = TrainProcess(
                    host.command(*PROGRAM, *words), run_dir.with_name(f"{run_dir.name}-host-{number}.log")
                )

    def finish(self) -> None:
        self._run = None
        for process in self.joined.values():
            process.end()
        self.joined = {}

    def close(self) -> None:
        self.finish()
        self.hosts.close()
