"""Two hosts that reach the coordinator but not each other: it is said which, within seconds, and they are blamed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from host_runs import ROOT, HostRun, eventually

from shoal.testing.hosts import Host, Hosts

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
NOBODY = "02:00:00:00:00:99"


def cut(one: Host, other: Host) -> None:
    """From now on nothing that one of them sends reaches the other, and nobody is told."""
    for here, there in ((one, other), (other, one)):
        done = here.run("ip", "neigh", "replace", there.address, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
        assert done.returncode == 0, done.stderr


def mend(one: Host, other: Host) -> None:
    for here, there in ((one, other), (other, one)):
        here.run("ip", "neigh", "del", there.address, "dev", "eth0")


def pair(a: Host, b: Host, said: str) -> bool:
    return any(
        f"on {a.name} ({a.address})" in line and f"on {b.name} ({b.address}) do not hear each other" in line
        for line in said.splitlines()
    )


RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[2], 7000))
print("listening", flush=True)
one, _ = server.accept()
if sys.argv[1] == "frozen":
    time.sleep(600)
while one.recv(1 << 20):
    pass
"""
SEND = """
import socket, sys, threading, time
from shoal.comm.unheard import silent_addresses
one = socket.create_connection((sys.argv[1], 7000))
threading.Thread(target=one.sendall, args=(bytes(int(sys.argv[2])),), daemon=True).start()
until, looks = time.monotonic() + float(sys.argv[3]), []
print("sending", flush=True)
while time.monotonic() < until:
    looks.append(bool(silent_addresses()))
    time.sleep(0.1)
print(sum(looks), len(looks), flush=True)
"""


@pytest.mark.parametrize("how", ["slow", "frozen", "cut"])
def test_only_a_link_that_carries_nothing_is_silent(make_hosts: Callable[..., Hosts], how: str) -> None:
    """A link of 100 Mbit/s that is full, and drops what is too much for it; a receiver that does not read; a cut."""
    hosts = make_hosts(2, "100mbit")
    a, b = hosts[0], hosts[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    receiving = b.command(sys.executable, "-c", RECEIVE, how, b.address)
    sending = a.command(sys.executable, "-c", SEND, b.address, str(100_000_000), "4")
    with subprocess.Popen(receiving, stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == b"listening\n"
        with subprocess.Popen(sending, stdout=subprocess.PIPE, text=True, env=environment) as sender:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "sending\n"
            if how == "cut":
                cut(a, b)
            silent, looks = map(int, sender.stdout.readline().split())
        receiver.kill()
    assert looks > 5
    assert (silent > 0) == (how == "cut"), f"{silent} of {looks}"


def test_the_link_between_two_others_is_cut(make_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    """While they train: it is said at once, and they go on when it is back. For good: the pair is blamed."""
    hosts = make_hosts(3)
    home, a, b = hosts[0], hosts[1], hosts[2]
    run = HostRun(tmp_path, home)
    words = ("--min-workers", "3", "--set", "comm.timeout_s=20")
    with run.train(*words, at=(10, 30)) as at_home, run.join(a, at_home), run.join(b, at_home):
        run.reached(10, at_home)
        cut(a, b)
        run.open(10)
        begun = time.monotonic()
        eventually(lambda: pair(a, b, at_home.said) or pair(b, a, at_home.said), what="a word about the pair")
        assert time.monotonic() - begun < 5.0
        mend(a, b)
        run.reached(30, at_home)
        assert run.sizes() == [3], "they went on where they were"
        (told,) = [one["message"] for one in run.events("warning") if "do not hear each other" in one["message"]]
        assert told in at_home.said
        cut(a, b)
        run.open(30)
        (fault, *_) = eventually(lambda: run.events("fault"), what="the end of their patience")
        at_fault = "the link between their hosts is at fault" in fault["cause"]
        assert at_fault or "do not hear each other" in fault["cause"], fault
        assert fault["cause"] in at_home.said


def test_two_hosts_that_never_heard_each_other(make_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts = make_hosts(3)
    home, a, b = hosts[0], hosts[1], hosts[2]
    cut(a, b)
    run = HostRun(tmp_path, home)
    words = ("--min-workers", "3", "--set", "comm.timeout_s=20")
    with run.train(*words) as at_home, run.join(a, at_home), run.join(b, at_home):
        eventually(lambda: pair(a, b, at_home.said) or pair(b, a, at_home.said), what="a word about the pair")
        mend(a, b)
        assert at_home.end() == 0, at_home.said
    run.check_complete()
