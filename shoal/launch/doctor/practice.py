"""Examinations from beginning to end: of this machine alone, of hosts that join, and of hosts that are sent for."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from shoal.core.errors import ConfigError, ShoalError, UserError
from shoal.elastic.keys import ClientKeys, RunKeys, read_key_file, write_key_file
from shoal.elastic.link import Link
from shoal.launch.doctor.deadline import Deadline
from shoal.launch.doctor.desk import READY_S, desk
from shoal.launch.doctor.examiner import Examiner
from shoal.launch.doctor.exchange import Exchange
from shoal.launch.doctor.facts import TORCH_S, HostFacts, gather
from shoal.launch.doctor.findings import Crossing, Finding, judge_host, judge_loopback
from shoal.launch.doctor.link import LIMIT_S, LinkServer, measure
from shoal.launch.doctor.patient import attend
from shoal.launch.interfaces import LOOPBACK, Endpoint, remote_endpoint, route_to

COME_S = 5.0  # for a host that was sent for to come, before its facts are waited for
TYPE_S = 300.0  # for a person to type a command on each host
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=5 {host}"
_BEAT_S = 0.3
_MEASURE_S = 0.3
_END_S, _LEAST_END_S = 3.0, 0.5  # for others to end, and when all time is over

Examined = tuple[list[HostFacts], list[Finding]]


def examine_here() -> Examined:
    """This machine by itself; nothing listens but on loopback, and for who has the token only."""
    deadline = Deadline()
    facts = gather(torch_s=deadline.left_s(TORCH_S))
    token = secrets.token_bytes(32)
    name = facts.host
    try:
        with LinkServer(LOOPBACK, token) as server:
            found = measure(LOOPBACK, server.port, token, _MEASURE_S, deadline.left_s(LIMIT_S))
        crossing = Crossing(name, name, found.bytes_per_s, found.latency_s)
    except OSError as error:
        crossing = Crossing(name, name, problem=f"cannot be used ({error.strerror or error})")
    return [facts], [*judge_host(facts), judge_loopback(name, crossing)]


class Surgery:
    """Where hosts come to be examined: a coordinator on `endpoint`, with keys of its own, as long as the ``with``
    block lasts. One examination in each, which is over at the `Deadline` that begins now."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._keys = RunKeys.make()
        self._stack = contextlib.ExitStack()
        self._deadline = Deadline()
        ready_s = self._deadline.left_s(READY_S)
        self.address = self._stack.enter_context(desk(self._keys, endpoint, ready_s))  # tcp://host:port
        self._host = endpoint.address

    def __enter__(self) -> Surgery:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def place(self) -> str:
        """As one would type it: host:port."""
        return self.address.removeprefix("tcp://")

    def write_key(self, path: Path) -> None:
        """Write the key file, which is removed at the end."""
        if path.exists():
            raise ConfigError(f"--key-file {path}: is there already: choose another name, or remove it")
        try:
            write_key_file(path, self._keys.client(), self.address)
        except OSError as error:
            raise ConfigError(f"--key-file {path}: cannot be written ({error.strerror})") from None
        self._stack.callback(path.unlink, missing_ok=True)

    def wait_and_examine(self, others: int, wait_s: float = TYPE_S) -> Examined:
        """Examine this host and so many others, which come by themselves."""
        return self._examine([socket.gethostname(), *[""] * others], wait_s, None)

    def send_for(
        self, hosts: Sequence[str], via: str = SSH, there: str | None = None, wait_s: float = COME_S
    ) -> Examined:
        """Examine this host and these, each of which is reached with the words of `via`. `there`: how Shoal is called
        on them; left out, as here."""
        command = there if there is not None else shlex.join([sys.executable, "-m", "shoal"])
        with _Envoys(hosts, via, command, self.place, self._keys.client(), self.address, self._end_s) as envoys:
            return self._examine([socket.gethostname(), *hosts], wait_s, envoys)

    def _end_s(self) -> float:
        """How long others are given to end by themselves."""
        return max(_LEAST_END_S, self._deadline.left_s(_END_S))

    def _examine(self, names: list[str], wait_s: float, envoys: _Envoys | None) -> Examined:
        with _link(self.address, self._keys.client()) as link:
            examiner = Examiner(Exchange(link), self._deadline)
            with self._attending(names[0]):
                return examiner.examine(names, wait_s, envoys.lost if envoys is not None else dict)

    @contextlib.contextmanager
    def _attending(self, name: str) -> Iterator[None]:
        """This host is examined like any other, in a thread."""

        def go() -> None:
            with contextlib.suppress(ShoalError), _link(self.address, self._keys.client()) as link:
                attend(Exchange(link), self._host, name)

        thread = threading.Thread(target=go, name="shoal-doctor-patient", daemon=True)
        thread.start()
        yield
        thread.join(self._end_s())


class _Envoys:
    """Processes that have this program run on other hosts. The key goes in by standard input: it is in no arguments."""

    def __init__(
        self, hosts: Sequence[str], via: str, command: str, place: str, keys: ClientKeys, address: str,
        end_s: Callable[[], float],
    ) -> None:  # fmt: skip
        if "{host}" not in via:
            raise ConfigError(f"--via {via!r}: {{host}} must be in it, in the place of the host's name")
        if len(set(hosts)) != len(hosts):
            raise ConfigError(f"--hosts {','.join(hosts)}: name each host once")
        self._end_s = end_s
        self._running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        self._problems: dict[str, str] = {}
        key = _key_text(keys, address)
        for host in hosts:
            words = [word.replace("{host}", host) for word in shlex.split(via)]
            order = [*shlex.split(command), "doctor", "--join", place, "--key-file", "-", "--name", host]
            # what ssh is given is one line for a shell there; other commands take the words as they are
            words += [shlex.join(order)] if Path(words[0]).name == "ssh" else order
            said = TemporaryFile()  # noqa: SIM115 - open as long as the process is
            try:
                process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=said, stderr=said)
            except OSError as error:
                said.close()
                self._problems[host] = f"`{words[0]}` cannot be run ({error.strerror})"
                continue
            self._running[host] = process, said
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(key)

    def lost(self) -> dict[str, str]:
        """Hosts that will not come any more, and what was said last about it."""
        for host, (process, said) in self._running.items():
            if process.poll() not in (None, 0) and host not in self._problems:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                self._problems[host] = lines[-1] if lines else f"the way there ended with status {process.returncode}"
        return dict(self._problems)

    def __enter__(self) -> _Envoys:
        return self

    def __exit__(self, *_: object) -> None:
        until = time.monotonic() + self._end_s()
        for process, said in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            process.kill()
            process.wait()
            said.close()


def join(place: str, key_file: str, name: str | None) -> str:
    """Be examined by the host that listens at `place`. `key_file` ``-``: the key comes by standard input."""
    endpoint = remote_endpoint(place, "--join")
    keys, _ = _read_key(key_file)
    mine = route_to(endpoint.address)
    with _link(f"tcp://{endpoint}", keys) as link:
        return attend(Exchange(link), mine, name or socket.gethostname())


def _read_key(key_file: str) -> tuple[ClientKeys, str]:
    if key_file != "-":
        return read_key_file(key_file)
    from tempfile import NamedTemporaryFile

    data = sys.stdin.buffer.read(4096)
    if not data:
        raise UserError("--key-file -: no key came by standard input")
    with NamedTemporaryFile() as file:  # for its owner only, as a key file must be
        file.write(data)
        file.flush()
        return read_key_file(file.name)


def _key_text(keys: ClientKeys, address: str) -> bytes:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:
        path = Path(directory) / "key"
        write_key_file(path, keys, address)
        return path.read_bytes()


@contextlib.contextmanager
def _link(address: str, keys: ClientKeys) -> Iterator[Link]:
    link = Link(address, keys, _BEAT_S)
    try:
        yield link
    finally:
        link.close()
