"""Network namespaces as hosts: each has its own interfaces, addresses and loopback, and a link that can be made slow
or be cut.

The hosts hang on a switch that is a namespace, too, so nothing of this machine's own network is touched: no address, no
route, no interface. Needs root. `why_not` says plainly why hosts cannot be made here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import string
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_COMMAND_S = 60.0  # it waits for the kernel, which may be busy
_INTERFACE = "eth0"
_OURS = re.compile(r"shoal-(\d+)(?:\.\d+)?-[a-z]+$")
# a host has a name of its own, as real ones do: a namespace for it, and the command in its place
_AS_HOST = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
_counter = itertools.count()


class HostsUnavailable(Exception):  # noqa: N818 - a reason, mostly to skip a test
    """Hosts cannot be made on this machine; the message says why and what would help."""


def why_not(shaped: bool = False) -> str | None:
    """Why no hosts can be made here, or None. `shaped`: with links of a stated rate."""
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux"
    if os.geteuid() != 0:
        return "not root: network namespaces need it"
    for command in ("ip", "unshare", *(("tc",) if shaped else ())):
        if shutil.which(command, path=_search_path()) is None:
            package = "util-linux" if command == "unshare" else "iproute2"
            return f"no {command} command: apt-get install {package}"
    return None


@dataclass(frozen=True)
class Host:
    """One host. `name` is that of its namespace, and its host name; `address` is where the others reach it."""

    name: str
    address: str
    port: str  # its end of the link on the switch

    def command(self, *words: str) -> list[str]:
        """The words that run `words` on this host, from this machine."""
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", _AS_HOST, self.name, *words]

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command on this host; `options` as for `subprocess.Popen`. The process is that of the command."""
        return subprocess.Popen(self.command(*words), text=True, **options)

    def run(self, *words: str, timeout_s: float = _COMMAND_S, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on this host to its end, and return what it said."""
        return subprocess.run(
            self.command(*words), text=True, capture_output=True, timeout=timeout_s, check=False, **options
        )

    def bytes_sent(self) -> int:
        """What its interface has sent since it was made."""
        shown = json.loads(_do("ip", "-n", self.name, "-s", "-j", "link", "show", _INTERFACE))
        return int(shown[0]["stats64"]["tx"]["bytes"])

    def processes(self) -> list[int]:
        """The processes that run on this host."""
        return [int(pid) for pid in _do("ip", "netns", "pids", self.name).split()]


class Hosts:
    """So many hosts on one switch, with addresses from 10.77.0.0/24. Use in a ``with`` statement: whatever happens,
    the hosts and all that runs on them are gone afterwards.

    `rate`: what each link carries, each way, in the words of ``tc`` (``100mbit``). `tag` makes their names,
    ``shoal-<tag>-a`` and so on; left out, it is this process's own, and hosts that a killed process has left behind are
    taken away first.
    """

    def __init__(self, count: int, rate: str | None = None, tag: str | None = None) -> None:
        if not 1 <= count <= len(string.ascii_lowercase):
            raise ValueError(f"count={count}: between 1 and {len(string.ascii_lowercase)} hosts are possible")
        reason = why_not(shaped=rate is not None)
        if reason is not None:
            raise HostsUnavailable(reason)
        if tag is None:
            sweep()
            tag = f"{os.getpid()}.{next(_counter)}"
        self._switch = f"shoal-{tag}-switch"
        self._hosts = [
            Host(f"shoal-{tag}-{letter}", f"10.77.0.{number}", f"port-{letter}")
            for number, letter in enumerate(string.ascii_lowercase[:count], start=1)
        ]
        try:
            self._build(rate)
        except BaseException:
            self.close()
            raise

    def _build(self, rate: str | None) -> None:
        switch = self._switch
        _do("ip", "netns", "add", switch)
        _do("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        _do("ip", "-n", switch, "link", "set", "switch", "up")
        for host in self._hosts:
            _do("ip", "netns", "add", host.name)
            inside = ("ip", "-n", host.name)
            # made where they belong: this machine's own namespace never sees them
            pair = ("type", "veth", "peer", "name", host.port, "netns", switch)
            _do("ip", "link", "add", _INTERFACE, "netns", host.name, *pair)
            _do("ip", "-n", switch, "link", "set", host.port, "master", "switch", "up")
            _do(*inside, "address", "add", f"{host.address}/24", "dev", _INTERFACE)
            _do(*inside, "link", "set", "lo", "up")
            _do(*inside, "link", "set", _INTERFACE, "up")
            if rate is not None:
                self.shape(host, rate)

    def __getitem__(self, number: int) -> Host:
        return self._hosts[number]

    def __len__(self) -> int:
        return len(self._hosts)

    def shape(self, host: Host, rate: str) -> None:
        """Have this host's link carry so much and no more, each way."""
        shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        _do("tc", "-n", host.name, "qdisc", "replace", "dev", _INTERFACE, *shape)
        _do("tc", "-n", self._switch, "qdisc", "replace", "dev", host.port, *shape)

    def cut(self, host: Host) -> None:
        """Pull the cable out of the switch: from now on nothing arrives, and nobody is told."""
        _do("ip", "-n", self._switch, "link", "set", host.port, "down")

    def mend(self, host: Host) -> None:
        """Put the cable back."""
        _do("ip", "-n", self._switch, "link", "set", host.port, "up")

    def close(self) -> None:
        """Take the hosts away, with all that runs on them. May be called twice."""
        for name in (*(host.name for host in self._hosts), self._switch):
            remove(name)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def standing() -> list[str]:
    """The names of the namespaces that are there."""
    found = json.loads(_do("ip", "-j", "netns", "list") or "[]")
    return sorted(str(entry["name"]) for entry in found)


def remove(name: str) -> None:
    """Take a namespace away, with all that runs in it. Nothing happens if it is not there."""
    with contextlib.suppress(HostsUnavailable):
        for pid in _do("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(HostsUnavailable):
        _do("ip", "netns", "delete", name)


def sweep(alive: Callable[[int], bool] = lambda pid: Path(f"/proc/{pid}").exists()) -> list[str]:
    """Take away the hosts of processes that are gone, which were killed before they could do it themselves."""
    left = [name for name in standing() if (ours := _OURS.match(name)) and not alive(int(ours[1]))]
    for name in left:
        remove(name)
    return left


def _search_path() -> str:
    """Administrators' commands are often not on the path of others."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def _do(*words: str) -> str:
    try:
        done = subprocess.run(
            words,
            text=True,
            capture_output=True,
            timeout=_COMMAND_S,
            check=False,
            env={**os.environ, "PATH": _search_path()},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostsUnavailable(f"`{' '.join(words)}`: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise HostsUnavailable(f"`{' '.join(words)}`: {said[-1]}")
    return done.stdout


def main(words: Sequence[str] | None = None) -> int:
    """``scripts/hosts``: hosts to try things on by hand."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="scripts/hosts", description="Network namespaces as hosts, on 10.77.0.0/24. Needs root and iproute2."
    )
    parser.add_argument("--tag", default="lab", help="names the set: shoal-<tag>-a, shoal-<tag>-b … (default lab)")
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="make hosts")
    up.add_argument("count", type=int)
    up.add_argument("--rate", help="what each link carries, such as 100mbit (default: as much as it can)")
    for action, text in (("cut", "pull a host's cable"), ("mend", "put it back")):
        actions.add_parser(action, help=text).add_argument("host", help="its letter: a, b …")
    run = actions.add_parser("run", help="run a command on a host")
    run.add_argument("host", help="its letter: a, b …")
    run.add_argument("command", nargs=argparse.REMAINDER)
    actions.add_parser("list", help="the hosts that are there")
    actions.add_parser("down", help="take the hosts away, with all that runs on them")
    given = parser.parse_args(words)
    try:
        return _act(given)
    except (HostsUnavailable, ValueError) as error:
        print(f"scripts/hosts: {error}", file=sys.stderr)
        return 2


def _act(given: Any) -> int:
    reason = why_not()
    if reason is not None:
        raise HostsUnavailable(reason)
    prefix = f"shoal-{given.tag}-"
    names = [name for name in standing() if name.startswith(prefix) and name != f"{prefix}switch"]
    if given.action == "up":
        if names:
            raise HostsUnavailable(f"{', '.join(names)} are there already: `scripts/hosts down` takes them away")
        made = Hosts(given.count, given.rate, given.tag)
        for host in (made[number] for number in range(given.count)):
            print(f"{host.name}  {host.address}  scripts/hosts run {host.name.removeprefix(prefix)} COMMAND")
        return 0
    if given.action == "list":
        print("\n".join(names) or "no hosts: `scripts/hosts up 2` makes two")
        return 0
    if given.action == "down":
        for name in (*names, f"{prefix}switch"):
            remove(name)
        return 0
    if f"{prefix}{given.host}" not in names:
        raise HostsUnavailable(f"there is no host {given.host}: {', '.join(names) or '`scripts/hosts up 2` makes two'}")
    host = Host(f"{prefix}{given.host}", "", f"port-{given.host}")
    if given.action == "run":
        return subprocess.run(host.command(*(given.command or ["sh"])), check=False).returncode
    _do("ip", "-n", f"{prefix}switch", "link", "set", host.port, "down" if given.action == "cut" else "up")
    return 0
