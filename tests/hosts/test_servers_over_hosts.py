"""Servers on one host and those who use them on another: a store by itself, and runs that train."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from host_runs import DEADLINE_S, ROOT, Command, HostRun, eventually

from shoal.testing.hosts import Host, Hosts

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
DIGITS = ROOT / "examples" / "digits.py"
MODEL_BYTES = 4 * (64 * 128 + 128 + 128 * 10 + 10)

# Prints the ways that the store's connections took, then what it got.
CLIENT = """
import json, sys
import numpy as np
import shoal
with shoal.KVStore(sys.argv[1]) as store:
    store.set("x", np.arange(100_000.0))
    store.declare("table", (1000, 4), sparse=True, updater="add")
    for _ in range(2):
        store.push("table", np.ones((2, 4)), rows=[3, 997])
    got = [float(store.get("x").sum()), store.pull("table", rows=[3, 4, 997])[:, 0].tolist()]
    ways = sorted({client.way for link in store._mode.links for client in link._clients.values()})
    print(json.dumps([ways, *got]))
"""


def use(host: Host, directory: Path) -> list[object]:
    """What a client on this host tells of the store."""
    done = host.run(sys.executable, "-c", CLIENT, str(directory), timeout_s=DEADLINE_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("words", "way"), [((), "tcp, encrypted"), (("--encrypt", "off"), "tcp, authenticated")], ids=["default", "off"]
)
def test_a_store_is_used_from_another_host(
    words: tuple[str, ...], way: str, make_hosts: Callable[..., Hosts], tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    a, b = hosts[0], hosts[1]
    given = ("--servers", "1", "--listen", "auto", "--dir", "tables", *words)
    with Command(a, tmp_path, "kvstore", *given) as command:
        eventually(lambda: "use them with" in command.said or not command.running(), what="the store")
        assert f"1 servers at {a.address}:" in command.said
        before = b.bytes_sent()
        assert use(b, tmp_path / "tables") == [[way], sum(range(100_000)), [2, 0, 2]]
        assert b.bytes_sent() - before > 8 * 100_000, "it went over the link"
        # it is the same store on the host of the servers, where nothing has to be sealed
        assert use(a, tmp_path / "tables") == [["shm"], sum(range(100_000)), [4, 0, 4]]
        command.terminate()
        assert command.end() == 0, command.said


def train_on_both(hosts: Hosts, directory: Path, *words: str) -> HostRun:
    """A short run with a worker on each host; every sample is seen exactly once in every epoch."""
    a, b = hosts[0], hosts[1]
    run = HostRun(directory, a)
    given = ("--epochs", "2", "--listen", "auto", "--min-workers", "2", "--run-dir", "run", *words)
    before = a.bytes_sent()
    with Command(a, directory, "train", str(DIGITS), *given) as home, run.join(b, home) as joined:
        assert home.end() == 0, home.said + joined.said
        assert joined.end() == 0, joined.said
    summary = run.summary()
    assert summary["status"] == "completed", summary
    coverage = summary["coverage"]
    assert coverage["missed"] == coverage["repeated"] == 0, coverage
    assert coverage["once"] == coverage["expected"] == summary["samples"] > 0, coverage
    assert sorted(where(run, "worker")) == [a.name, b.name]
    assert a.bytes_sent() - before > MODEL_BYTES, "the model went over the link"
    return run


def where(run: HostRun, role: str) -> list[str]:
    """The hosts of all members of this role that ever joined."""
    return [event["host"] for event in run.events("member_joined") if event["role"] == role]


def test_asynchronous_workers_share_a_server_on_one_of_the_hosts(
    make_hosts: Callable[..., Hosts], tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    run = train_on_both(hosts, tmp_path, "--strategy", "async", "--servers", "1")
    assert where(run, "server") == [hosts[0].name]


def test_weights_are_averaged_by_a_codec_that_the_link_has_chosen(
    make_hosts: Callable[..., Hosts], tmp_path: Path
) -> None:
    run = train_on_both(make_hosts(2), tmp_path, "--strategy", "incremental", "--codec", "auto")
    (chosen,) = run.events("codec")
    assert chosen["codec"] in chosen["predicted_s"], chosen
