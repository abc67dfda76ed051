"""What `shoal doctor` prints, and its status."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest
from doctor_cases import GOOD

from shoal.cli.main import main
from shoal.launch.doctor import practice
from shoal.launch.doctor.findings import judge_host

pytestmark = pytest.mark.unit


def examine(monkeypatch: pytest.MonkeyPatch, **change: Any) -> None:
    facts = dataclasses.replace(GOOD, **change)
    monkeypatch.setattr(practice, "examine_here", lambda: ([facts], judge_host(facts)))


def test_a_good_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    examine(monkeypatch)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "All is well" in said
    assert "3.11.2" in said


def test_a_warning_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    examine(monkeypatch, load=50.0)
    assert main(["doctor"]) == 0
    assert "A run will work" in capsys.readouterr().out


def test_a_bad_host_is_named_and_the_status_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examine(monkeypatch, torch="")
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "Not fit for a run: a." in said
    assert "pip install torch" in said


def test_json_alone_on_standard_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    examine(monkeypatch, torch="")
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["bad_hosts"]) == ("bad", ["a"])
    assert told["hosts"][0]["cores"] == 8


def test_this_machine_is_examined_for_real_in_under_thirty_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    main(["doctor", "--json"])
    assert time.monotonic() - begun < 30
    told = json.loads(capsys.readouterr().out)
    checks = {one["check"]: one["verdict"] for one in told["findings"]}
    assert checks["Python"] == "ok"
    assert checks["loopback"] != "bad"
    assert told["hosts"][0]["interface"] == "lo"
