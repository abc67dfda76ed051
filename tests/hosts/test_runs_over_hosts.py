"""Runs over real links between hosts: the same result as on one, and a host that is cut off costs nobody a sample."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from host_runs import HostRun, difference

from shoal.elastic.keys import RunKeys, write_key_file
from shoal.testing.hosts import Host, Hosts

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
MODEL_BYTES = 4 * (64 * 128 + 128 + 128 * 10 + 10)


def listening(host: Host) -> set[str]:
    """The addresses on which anything listens there."""
    shown = host.run("ss", "--tcp", "--listening", "--numeric", "--no-header").stdout
    return {line.split()[3].rpartition(":")[0] for line in shown.splitlines()}


def test_two_hosts_give_what_one_gives(make_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts = make_hosts(2, "100mbit")
    a, b = hosts[0], hosts[1]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = HostRun(tmp_path / "one", a)
    with one.train("--workers", "2", at=(5,), listen=None) as command:
        one.reached(5, command)
        assert listening(a) == {"127.0.0.1"}, "a run on one machine listens on loopback only"
        one.open(5)
        assert command.end() == 0, command.said
    before = a.bytes_sent(), b.bytes_sent()
    two = HostRun(tmp_path / "two", a)
    with two.train("--min-workers", "2", at=(5,)) as home, two.join(b, home) as joined:
        two.reached(5, home)
        for host in (a, b):
            assert listening(host) <= {host.address}, "bound to the interface of the run"
        two.open(5)
        assert home.end() == 0, home.said + joined.said
        assert joined.end() == 0, joined.said
    two.check_complete()
    assert two.sizes() == [2]
    assert difference(two.parameters(), one.parameters()) < 5e-6
    for host, sent in zip((a, b), before, strict=True):
        assert host.bytes_sent() - sent > 60 * MODEL_BYTES, "gradients went over the link"


def test_a_host_that_is_cut_off_is_missed_by_nobody_and_comes_back(
    make_hosts: Callable[..., Hosts], tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    a, b = hosts[0], hosts[1]
    run = HostRun(tmp_path, a)
    with run.train("--min-workers", "1", at=(10, 30, 50)) as home:
        run.reached(10, home)
        with run.join(b, home) as joined:
            run.wait_for_someone_at_the_door()
            run.open(10)
            run.reached(30, home)
            assert run.sizes()[-1] == 2, joined.said
            step = 30  # the one after those that are committed at the gate
            run.wait_until_heard_of(b, "reduce", step)  # it waits for the first worker, which waits at the gate
            hosts.cut(b)
            run.open(30)
            # the rest goes on, up to the next gate
            run.reached(50, home)
            assert run.sizes()[-1] == 1
            hosts.mend(b)
            run.wait_for_someone_at_the_door()
            run.open(50)
            assert home.end() == 0, home.said
            assert joined.end() == 0, joined.said
    run.check_complete()
    assert run.sizes()[-1] == 2, "it came back as new"
    lost = run.events("member_lost")
    assert [event["host"] for event in lost] == [b.name], lost
    (fault,), (logged,) = run.summary()["faults"], run.events("fault")
    cause = f"gave no sign of life for 2 s, last heard of in reduce at step {step}"
    named = {"member": f"worker 1 on {b.name}", "at_step": step, "phase": "reduce", "cause": cause}
    assert named.items() <= fault.items()
    assert named.items() <= logged.items()
    assert f"shoal: worker 1 of 2 on {b.name} was lost at step {step} (reduce): {cause}; the" in home.said, home.said


def test_no_one_gets_in_without_the_key(make_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts = make_hosts(2)
    a, b = hosts[0], hosts[1]
    run = HostRun(tmp_path, a)
    with run.train(at=(5,)) as home:
        run.reached(5, home)
        secret = json.loads((run.path / "key").read_text())["client_secret"].encode()
        for process in a.processes():
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                for what in ("cmdline", "environ"):
                    assert secret not in Path(f"/proc/{process}/{what}").read_bytes()
        for file in run.path.rglob("*"):
            assert file.name == "key" or file.is_dir() or secret not in file.read_bytes(), file
        wrong = tmp_path / "wrong"
        write_key_file(wrong, RunKeys.make().client(), "tcp://10.77.0.1:1")
        hurried = "import shoal.launch.joining as joining; joining.invitation.__defaults__ = (5.0,)"
        with run.join(b, home, "--key-file", str(wrong), first=hurried) as joined:
            assert joined.end() == 2
        assert "no run answers at" in joined.said
        run.open(5)
        assert home.end() == 0, home.said
    assert run.sizes() == [1]
    run.check_complete()
