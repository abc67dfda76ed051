"""Runs over two hosts, network namespaces with a link each: `shoal train` with `shoal join`, or torch's DDP.

What a host has sent is read off its interface. Needs root, see `shoal.drill.hosts`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from shoal.drill.hosts import Host, Hosts

HOSTS = 2
_JOIN = re.compile(r"shoal (join \S+ --key-file \S+)\n")
_PORT = 29500  # of torch's rendezvous, on the first host: nothing else runs there
_SHOWN_CHARACTERS = 3000


class Failed(Exception):  # noqa: N818 - what became of a run
    """A run did not come to its end; the message has the end of its log."""


def shoal(
    hosts: Hosts, python: Path, script: Path, words: Sequence[str], run_dir: Path, variables: dict[str, str],
    timeout_s: float, arguments: Sequence[str] = (), niceness: int = 0,
) -> None:  # fmt: skip
    """Train `script` on two hosts with one worker each, to the end. `words` are options of `shoal train`."""
    logs = run_dir.with_name(f"{run_dir.name}-home.log"), run_dir.with_name(f"{run_dir.name}-joined.log")
    command = [str(python), "-m", "shoal"]
    size = ["--workers", "1", "--min-workers", str(HOSTS), "--max-workers", str(HOSTS)]
    home = ["train", str(script), "--listen", hosts[0].address, "--run-dir", str(run_dir), *size, *words]
    with processes.ending_orphans():
        line = [*command, *home, "--", *arguments]
        first = _start(hosts[0], line, variables, logs[0], niceness)
        invitation = _wait_for_invitation(first, logs[0], timeout_s)
        second = _start(hosts[1], [*command, *invitation.split()], variables, logs[1], niceness)
        _wait_for_all([first, second], list(logs), timeout_s)


def torch(
    hosts: Hosts, python: Path, module: str, words: Sequence[str], directory: Path, variables: dict[str, str],
    timeout_s: float,
) -> None:  # fmt: skip
    """Run `module` as a process a host, with the variables that ``init_process_group`` reads."""
    logs = [directory / f"rank-{rank}.log" for rank in range(HOSTS)]
    with processes.ending_orphans():
        started = []
        for rank, log in enumerate(logs):
            own = {
                "RANK": str(rank), "WORLD_SIZE": str(HOSTS), "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": str(_PORT), "GLOO_SOCKET_IFNAME": "eth0",
            }  # fmt: skip
            started.append(_start(hosts[rank], [str(python), "-m", module, *words], {**variables, **own}, log, 0))
        _wait_for_all(started, logs, timeout_s)


def _start(
    host: Host, command: list[str], variables: dict[str, str], log: Path, niceness: int
) -> subprocess.Popen[bytes]:
    nice = ["nice", "-n", str(niceness)] if niceness else []
    # what is run there finds administrators' commands where this process does
    return processes.start([*nice, *host.command(*command)], {"PATH": os.environ["PATH"], **variables}, log)


def _wait_for_invitation(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> str:
    until = time.monotonic() + timeout_s
    while (found := _JOIN.search(log.read_text(errors="replace"))) is None:
        if process.poll() is not None or time.monotonic() > until:
            raise Failed(_end_of(log))
        time.sleep(0.05)
    return found[1]


def _wait_for_all(started: list[subprocess.Popen[bytes]], logs: list[Path], timeout_s: float) -> None:
    """Until all have ended well; the first that has not ends the others, since they would wait for it."""
    until = time.monotonic() + timeout_s
    while any(process.poll() is None for process in started):
        bad = [log for process, log in zip(started, logs, strict=True) if process.poll() not in (None, 0)]
        if bad or time.monotonic() > until:
            raise Failed("\n".join(_end_of(log) for log in bad or logs))
        time.sleep(0.05)
    for process, log in zip(started, logs, strict=True):
        if process.returncode:
            raise Failed(_end_of(log))


def _end_of(log: Path) -> str:
    return f"{log.name}: {log.read_text(errors='replace')[-_SHOWN_CHARACTERS:].strip()}"


def sent(hosts: Hosts) -> list[int]:
    """What each host's interface has sent since it was made."""
    return [hosts[number].bytes_sent() for number in range(len(hosts))]
