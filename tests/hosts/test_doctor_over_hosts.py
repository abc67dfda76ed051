"""`shoal doctor` between hosts: over a way to reach them, and with hosts that come by themselves."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from host_runs import Command, eventually

from shoal.cli.main import main
from shoal.launch.doctor import patient
from shoal.testing.hosts import Hosts

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


def test_the_host_with_the_slow_link_is_named_and_so_is_one_that_is_not_there(
    make_hosts: Callable[..., Hosts], tmp_path: Path
) -> None:
    hosts = make_hosts(3, "200mbit")
    a, b, c = hosts[0], hosts[1], hosts[2]
    hosts.shape(c, "5mbit")
    words = ("--hosts", f"{b.name},{c.name},nowhere", "--via", "ip netns exec {host}", "--wait", "60", "--json")
    done = a.run(sys.executable, "-m", "shoal", "doctor", *words, timeout_s=150, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    rows = {(one["host"], one["check"]): one for one in report["findings"]}
    assert report["verdict"] == "bad"
    assert {"nowhere", c.name} <= set(report["bad_hosts"])
    assert b.name not in report["bad_hosts"]
    assert "nowhere" in rows["nowhere", "answers"]["value"], "in the words of what was to reach it"
    assert rows[f"{a.name} -> {b.name}", "link"]["verdict"] != "bad"
    assert rows[f"{a.name} -> {c.name}", "link"]["verdict"] == "bad"
    assert rows[c.name, "its links"]["remedy"]
    assert rows[b.name, "clock"]["verdict"] == "ok"
    assert {host["address"] for host in report["hosts"]} == {a.address, b.address, c.address}


def test_hosts_that_come_by_themselves(make_hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts = make_hosts(2, "100mbit")
    a, b = hosts[0], hosts[1]
    with Command(a, tmp_path, "doctor", "--listen", "auto", "--expect", "1", "--wait", "100") as waiting:
        line = eventually(lambda: re.search(r"shoal (doctor --join \S+ --key-file \S+)\n", waiting.said))
        key = tmp_path / "shoal-doctor.key"
        assert key.stat().st_mode & 0o777 == 0o600
        shown = a.run("ss", "--tcp", "--listening", "--numeric", "--no-header").stdout
        assert {row.split()[3].rpartition(":")[0] for row in shown.splitlines()} == {a.address}
        with Command(b, tmp_path, *line[1].split(), "--name", "the-other") as coming:
            assert waiting.end() == 0, waiting.said
            assert coming.end() == 0, coming.said
        assert "2 hosts were examined" in coming.said
    assert "the-other" in waiting.said
    assert re.search(r"\d+ Mbit/s", waiting.said)
    assert not key.exists()


def test_a_host_that_comes_twice_is_examined_once(tmp_path: Path) -> None:
    words = ("doctor", "--listen", "127.0.0.1", "--expect", "1", "--wait", "100", "--json")
    with Command(None, tmp_path, *words) as waiting:
        line = eventually(lambda: re.search(r"shoal (doctor --join \S+ --key-file \S+)\n", waiting.said))
        with Command(None, tmp_path, *line[1].split()) as coming:
            waiting.end()
            assert coming.end() == 0, coming.said
        # whoever of the two was there first, the other one is told
        assert "examined" in coming.said
    report = json.loads(waiting.said[waiting.said.index("{") :])
    assert len(report["hosts"]) == 1
    assert not [one for one in report["findings"] if one["check"] == "answers"]


def test_a_host_that_never_answers_is_named_in_under_thirty_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mute = shlex.join([sys.executable, "-c", "import time; time.sleep(600)"]) + " {host}"
    gather = patient.gather
    monkeypatch.setattr(
        patient, "gather", lambda address: gather(address, torch_s=0.0)
    )  # that of this host is not asked
    begun = time.monotonic()
    assert main(["doctor", "--hosts", "mute", "--via", mute, "--listen", "127.0.0.1", "--wait", "0", "--json"]) == 1
    assert time.monotonic() - begun < 30
    told = json.loads(capsys.readouterr().out)
    assert told["bad_hosts"] == ["mute"]
    assert len(told["hosts"]) == 1
