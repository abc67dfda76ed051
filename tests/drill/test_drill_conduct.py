"""Both runs conducted, on a stand-in for `shoal train` with real processes: faults come, laws are judged, all ends."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import shoal.drill.run
from shoal.core.config import ElasticSettings
from shoal.core.errors import ConfigError, RunDirError, ShoalError
from shoal.drill.ground import OneMachine
from shoal.drill.inject import Hit
from shoal.drill.kinds import parse_kinds
from shoal.drill.report import Report
from shoal.drill.run import Drill, Progress, RandomFaults, conduct
from shoal.drill.schedule import FaultPlan

pytestmark = pytest.mark.ranks

FAKE = Path(__file__).with_name("fake_train.py")
Conduct = Callable[..., Report]


@pytest.fixture
def conducted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conduct:
    """Drills a stand-in of that name. Its parameters are said to be the same: it has none."""
    monkeypatch.setattr(shoal.drill.run, "relative_difference", lambda *_: 0.0)
    monkeypatch.setattr(shoal.drill.run, "has_final", lambda *_: True)

    def run(script: str, *faults: FaultPlan, progress: Progress | None = None, **more: Any) -> Report:
        asked: dict[str, Any] = {"workers": 3, "faults": faults, **more}
        ground = OneMachine((sys.executable, str(FAKE)))
        return conduct(Drill(script, tmp_path / "drill", **asked), progress or Progress(), ground)

    return run


def nobody_left() -> bool:
    """Whether no process of the stand-in is left, wherever it was re-parented to."""
    left = [p for p in psutil.process_iter(["cmdline"]) if str(FAKE) in " ".join(p.info["cmdline"] or [])]
    return not left


def test_every_kind_of_fault_is_carried_out_and_survived(conducted: Conduct, tmp_path: Path) -> None:
    report = conducted(
        "good.py",
        FaultPlan("kill", 5, 1), FaultPlan("freeze", 15, 0), FaultPlan("slow", 25, 2, 0.3), FaultPlan("preempt", 35, 2),
        FaultPlan("coordinator", 45),
    )  # fmt: skip
    assert report.exit_status == 0, report.verdict()
    assert [(fault.kind, fault.carried_out) for fault in report.faults] == [
        ("kill", True), ("freeze", True), ("slow", True), ("preempt", True), ("coordinator", True),
    ]  # fmt: skip
    noticed = {fault.kind: fault.detected_s for fault in report.faults}
    assert noticed["slow"] is None
    assert all(noticed[kind] is not None for kind in ("kill", "freeze", "preempt", "coordinator"))
    assert report.hurt.views > report.calm.views == 1
    saved = json.loads((tmp_path / "drill" / "drill.json").read_text())
    assert saved == json.loads(json.dumps(report.to_json()))
    assert "All laws held" in (tmp_path / "drill" / "drill.html").read_text()
    assert nobody_left()


def test_random_faults_are_drawn_for_the_length_of_the_run(conducted: Conduct) -> None:
    report = conducted("good.py", faults=RandomFaults(1, 4, parse_kinds("kill,coordinator")), pace_s=0.0)
    assert len(report.faults) == 4
    assert report.exit_status == 0, report.verdict()


def test_a_lost_sample_is_a_broken_law(conducted: Conduct, tmp_path: Path) -> None:
    report = conducted("loses.py", FaultPlan("kill", 5))
    assert report.exit_status == 1
    assert "599 of 600 once, 1 missed" in report.verdict()
    assert json.loads((tmp_path / "drill" / "drill.json").read_text())["laws_held"] is False


def test_different_parameters_are_a_broken_law(conducted: Conduct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal.drill.run, "relative_difference", lambda *_: 1e-5)
    assert conducted("good.py", FaultPlan("kill", 5)).exit_status == 1
    assert nobody_left()


def test_parameters_within_a_tolerance_of_ones_own(conducted: Conduct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal.drill.run, "relative_difference", lambda *_: 1e-5)
    assert conducted("good.py", FaultPlan("kill", 5), tolerance=1e-4).exit_status == 0


def test_a_run_that_is_stuck_is_ended_and_reported(conducted: Conduct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal.drill.run, "STALL_S", 0.0)
    report = conducted("stuck.py", FaultPlan("kill", 5), elastic=ElasticSettings(hang_s=0.5), deadline_s=0.5)
    assert report.exit_status == 1
    assert "exit status 124" in report.verdict()
    assert nobody_left()


def test_a_fault_too_late_for_a_short_run_is_no_success(conducted: Conduct) -> None:
    report = conducted("good.py", FaultPlan("kill", 5), *[FaultPlan("kill", 59)] * 5)
    assert report.exit_status == 3, report.verdict()
    assert [fault.carried_out for fault in report.faults][:1] == [True]


def test_a_calm_run_that_fails_ends_the_drill(conducted: Conduct) -> None:
    with pytest.raises(ShoalError, match=r"the calm run failed \(exit status 1\).*\nthe script has failed"):
        conducted("fails.py", FaultPlan("kill", 5))


def test_what_cannot_be_drilled_is_refused_first(conducted: Conduct, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several hosts"):
        conducted("good.py", FaultPlan("cut", 5, 1))
    with pytest.raises(ConfigError, match="leaves nobody"):
        conducted("good.py", FaultPlan("kill", 5), workers=1)
    assert not (tmp_path / "drill").exists()
    with pytest.raises(ConfigError, match="the run has 60 steps"):
        conducted("good.py", FaultPlan("kill", 60))
    with pytest.raises(RunDirError, match="is not empty, and a drill needs a directory of its own"):
        conducted("good.py", FaultPlan("kill", 5))


class Interrupting(Progress):
    """Presses Ctrl-C at the first fault."""

    def hit(self, hit: Hit) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_everything(conducted: Conduct) -> None:
    with pytest.raises(KeyboardInterrupt):
        conducted("good.py", FaultPlan("freeze", 5), progress=Interrupting())
    assert nobody_left()
