"""Hosts made of namespaces: they reach each other, over links as slow as asked, and nothing of them is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from shoal.testing import hosts as namespaces
from shoal.testing.hosts import Host, Hosts, HostsUnavailable

pytestmark = pytest.mark.ranks

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as link:
    link.sendall(bytes(int(sys.argv[4])))
    link.shutdown(socket.SHUT_WR)
    link.settimeout(60)
    assert link.recv(1) == b"!"
"""
TAKE = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    server.settimeout(60)
    print(server.getsockname()[1], flush=True)
    link, _ = server.accept()
    link.settimeout(60)
    total = 0
    while data := link.recv(1 << 16):
        total += len(data)
    link.sendall(b"!")
    print(total, flush=True)
"""


def send(source: Host, target: Host, size_bytes: int) -> float:
    """Seconds that it takes; the number of bytes that arrived is checked."""
    with target.start(sys.executable, "-c", TAKE, target.address, stdout=subprocess.PIPE) as taking:
        assert taking.stdout is not None
        port = taking.stdout.readline().strip()
        begun = time.monotonic()
        sent = source.run(sys.executable, "-c", SEND, target.address, port, "60", str(size_bytes))
        elapsed_s = time.monotonic() - begun
        assert sent.returncode == 0, sent.stderr
        assert int(taking.stdout.readline()) == size_bytes
    return elapsed_s


def test_hosts_have_names_and_reach_each_other_over_their_links(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts(3)
    a, _, c = hosts[0], hosts[1], hosts[2]
    assert a.run("hostname").stdout.strip() == a.name
    before = c.bytes_sent()
    send(c, a, 1 << 20)
    assert c.bytes_sent() - before >= 1 << 20


def test_a_shaped_link_carries_no_more_than_its_rate(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts(2, "100mbit")
    # 5 MB at 12.5 MB/s, less the burst that passes at once: no machine is so fast that it takes less
    assert send(hosts[0], hosts[1], 5_000_000) >= (5_000_000 - 2 * 262_144) / 12.5e6


def test_a_cut_link_lets_nothing_through_until_it_is_mended(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts(2)
    a, b = hosts[0], hosts[1]
    hosts.cut(b)
    lost = a.run(sys.executable, "-c", SEND, b.address, "9", "0.5", "1")
    assert lost.returncode != 0
    assert "TimeoutError" in lost.stderr or "No route to host" in lost.stderr
    assert b.run("true").returncode == 0, "the host itself goes on"
    hosts.mend(b)
    send(a, b, 1000)


def test_hosts_are_taken_away_with_what_runs_on_them(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts(1)
    name = hosts[0].name
    with hosts[0].start("sleep", "600") as process:
        assert name in namespaces.standing()
        hosts.close()
        assert process.wait(60) != 0
    hosts.close()
    assert not [left for left in namespaces.standing() if left.startswith(name.removesuffix("-a"))]


def test_hosts_of_a_killed_process_are_swept_up(make_hosts: Callable[..., Hosts]) -> None:
    kept = make_hosts(1)
    with subprocess.Popen(["sleep", "600"]) as owner:
        left = Hosts(1, tag=str(owner.pid))
        owner.kill()
    try:
        namespaces.sweep()  # or another process of tests does it, which makes hosts of its own
        assert left[0].name not in namespaces.standing()
        assert kept[0].name in namespaces.standing()
    finally:
        left.close()


def test_hosts_of_those_who_live_are_left_alone() -> None:
    mine = os.getpid()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.drill.hosts.standing", lambda: [f"shoal-{mine}.0-a", "shoal-7-b", "other-7-b"])
        patch.setattr("shoal.drill.hosts.remove", lambda name: None)
        assert namespaces.sweep(lambda pid: pid == mine) == ["shoal-7-b"]


def test_it_is_said_plainly_why_hosts_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostsUnavailable, match="not root"):
        Hosts(1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda command, path=None: None)
    assert namespaces.why_not() == "no ip command: apt-get install iproute2"


def test_this_machines_own_network_is_untouched(make_hosts: Callable[..., Hosts]) -> None:
    make_hosts(2)
    assert not [name for _, name in socket.if_nameindex() if name.startswith("port-")]
