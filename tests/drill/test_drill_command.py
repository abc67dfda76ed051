"""`shoal drill` as one types it: refusals that say what to do, help that teaches, and the real thing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import shoal.drill.run
from shoal.cli.main import main
from shoal.drill.hosts import standing, why_not
from shoal.drill.report import Limits, Report
from shoal.drill.run import Drill, RandomFaults

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Drill]:
    """What the command line asks for; nothing is run."""
    drills: list[Drill] = []
    (tmp_path / "digits.py").write_text("")
    monkeypatch.chdir(tmp_path)

    def conduct(drill: Drill, progress: object) -> Report:
        from drill_cases import calm, hits, hurt

        from shoal.drill.measure import measure

        drills.append(drill)
        run = hurt()
        return measure(calm(), run, hits(run), [], Limits(drill.tolerance), 1e-6)

    monkeypatch.setattr(shoal.drill.run, "conduct", conduct)
    return drills


@pytest.mark.unit
def test_a_drill_is_what_was_asked_for(asked: list[Drill], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--random", "7", "--faults", "4", "--kinds", "kill,freeze", "-w", "4", "--epochs", "3", "--run-dir", "d"]
    more = ["--set", "elastic.lease_s=1", "--set", "elastic.max_restarts=2", "--pace", "0", "--", "--data", "x"]
    assert main(["drill", "digits.py", *words, *more]) == 0
    (drill,) = asked
    assert isinstance(drill.faults, RandomFaults)
    assert (drill.faults.seed, drill.faults.faults) == (7, 4)
    assert [kind.name for kind in drill.faults.kinds] == ["kill", "freeze"]
    assert (drill.workers, drill.run_dir, drill.script_args) == (4, Path("d"), ("--data", "x"))
    assert drill.elastic.lease_s == 1
    assert "elastic.max_restarts" in drill.stated
    assert drill.pace_s == 0
    assert drill.words == (
        "--epochs", "3", "--set", "elastic.lease_s=1", "--set", "elastic.max_restarts=2",
    )  # fmt: skip
    assert "all laws held under 3 faults" in capsys.readouterr().out


@pytest.mark.unit
def test_json_alone_on_standard_output(asked: list[Drill], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", "digits.py", "--random", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["laws_held"] is True
    assert asked[0].workers == 3
    assert asked[0].words == ()
    assert asked[0].run_dir.name.startswith("drill-digits-")


@pytest.mark.unit
def test_a_broken_law_is_the_exit_status(asked: list[Drill]) -> None:
    assert main(["drill", "digits.py", "--random", "1", "--tolerance", "1e-7"]) == 1


@pytest.mark.unit
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which faults? Give --random SEED to have them drawn, or --schedule FILE"),
        (["--random", "1", "--schedule", "f.yaml"], "--schedule f.yaml and --random 1 both say which faults come"),
        (["--schedule", "f.yaml"], "--schedule f.yaml: there is no such file"),
        (["--random", "1", "--kinds", "kil"], "--kinds kil: unknown kind of fault 'kil': did you mean 'kill'?"),
        (["--random", "1", "--faults", "0"], "--faults 0: give 1 or more"),
        (["--random", "1", "--tolerance", "0"], "--tolerance 0: give a number above 0"),
        (["--random", "1", "--pace", "-1"], "--pace -1: give 0 or more"),
        (["--random", "1", "--set", "run_dir=x"], "run_dir: a drill has two runs"),
        (["--random", "1", "--set", "elastic.lease=1"], "did you mean 'elastic.lease_s'?"),
    ],
)
def test_mistakes_are_refused(
    asked: list[Drill], capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["drill", "digits.py", *words]) == 2
    assert message in capsys.readouterr().err
    assert not asked


@pytest.mark.unit
def test_what_one_machine_cannot_do_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.py").write_text("")
    assert main(["drill", "digits.py", "--random", "1", "--kinds", "cut", "--run-dir", "d"]) == 2
    assert "give --hosts 2" in capsys.readouterr().err
    assert not Path("d").exists()


@pytest.mark.unit
def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", "--help"]) == 0
    out = capsys.readouterr().out
    for words in ("shoal drill digits.py --random 1 --faults 20", "Kinds of faults", "at_step: 20", "Exit status 0"):
        assert words in out


# ---- the real thing


def command(*words: str, where: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(where)}
    return subprocess.Popen(
        [sys.executable, "-m", "shoal", "drill", str(ROOT / "examples" / "digits.py"), *words],
        cwd=where, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    )  # fmt: skip


def eventually(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"did not come true within {deadline_s} s"
        time.sleep(0.01)


def processes_of(where: Path) -> list[psutil.Process]:
    """Whatever runs with this directory in its words or as its working directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join([*(process.info["cmdline"] or []), process.info["cwd"] or ""])
        if process.pid != os.getpid() and str(where) in words:
            found.append(process)
    return found


@pytest.mark.ranks
@pytest.mark.slow
def test_a_real_drill(tmp_path: Path) -> None:
    """Workers killed, frozen, slowed and told to go, and the coordinator killed, at random in the digits run: all laws
    hold."""
    kinds = ("kill", "freeze", "slow", "preempt", "coordinator")
    words = ("--random", "1", "--faults", "5", "--kinds", ",".join(kinds), "--epochs", "4", "--run-dir", "d", "--json")
    process = command(*words, where=tmp_path)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, (out, err)
    report = json.loads(out)
    assert report["verdict"] == "all laws held under 5 faults"
    faults = {fault["kind"]: fault for fault in report["faults"]}
    assert set(faults) == set(kinds)
    for kind, fault in faults.items():
        assert fault["carried_out"], fault
        assert fault["member"].startswith("coordinator" if kind == "coordinator" else "worker "), fault
        assert fault["detected_s"] is not None or kind == "slow", fault
    assert faults["kill"]["cause"] == "killed by signal 9 (SIGKILL)"
    assert "SIGSTOP" in faults["freeze"]["cause"]
    assert faults["preempt"]["cause"] == "told to go (SIGTERM)"
    assert faults["slow"]["ended_s"] > faults["slow"]["time_s"]
    assert report["hurt"]["coverage"]["once"] == report["calm"]["coverage"]["once"] == 4 * 1437
    assert report["parameter_difference"] <= 5e-6
    assert report["hurt"]["views"] >= 4  # without the killed one, the frozen one, the one that was told to go
    assert "<svg" in (tmp_path / "d" / "drill.html").read_text()
    assert not processes_of(tmp_path)


@pytest.mark.ranks
def test_a_real_drill_of_servers(tmp_path: Path) -> None:
    """The process that holds a server is killed: its copy goes on, and the parameters are those of the calm run."""
    (tmp_path / "faults.yaml").write_text("- {kind: kill-server, at_step: 6, target: 1}\n")
    served = ("--strategy", "parameter-server", "--servers", "2", "--replicas", "2", "--workers", "2")
    process = command(
        "--schedule", "faults.yaml", "--epochs", "2", *served, "--run-dir", "d", "--json", where=tmp_path
    )  # fmt: skip
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, (out, err)
    report = json.loads(out)
    assert report["verdict"] == "all laws held under 1 fault"
    (fault,) = report["faults"]
    assert fault["member"] == "server 1"
    assert fault["detected_s"] is not None
    assert fault["pause_s"] < 2.0, "its copy takes over at once"
    assert fault["cause"] == "killed by signal 9 (SIGKILL)"
    assert report["hurt"]["coverage"]["once"] == report["calm"]["coverage"]["once"] == 2 * 1437
    assert report["parameter_difference"] <= 5e-6
    assert not processes_of(tmp_path)


@pytest.mark.ranks
def test_ctrl_c_ends_a_real_drill(tmp_path: Path) -> None:
    words = ("--random", "1", "--epochs", "50", "--set", "elastic.pace_s=0.1", "--run-dir", "d")
    with command(*words, where=tmp_path) as process:
        events = tmp_path / "d" / "calm" / "events.jsonl"
        eventually(lambda: process.poll() is not None or (events.exists() and '"step"' in events.read_text()))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, (out, err)
    assert "drill interrupted; both runs are ended, what there is lies in d" in err
    assert "Traceback" not in out + err
    eventually(lambda: not processes_of(tmp_path))


@pytest.mark.ranks
@pytest.mark.slow
def test_a_cut_link_between_real_hosts(tmp_path: Path) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no hosts can be made here: {reason}")
    (tmp_path / "faults.yaml").write_text("- {kind: cut, at_step: 3, seconds: 4}\n")
    words = ("--schedule", "faults.yaml", "--hosts", "2", "--workers", "2", "--epochs", "5", "--run-dir", "d", "--json")
    process = command(*words, where=tmp_path)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, (out, err)
    report = json.loads(out)
    (cut,) = report["faults"]
    assert cut["detected_s"] is not None
    assert "-b" in cut["member"]
    calm = [json.loads(line) for line in (tmp_path / "d" / "calm" / "events.jsonl").read_text().splitlines()]
    first_step = next(number for number, event in enumerate(calm) if event["kind"] == "step")
    there = {
        event["host"] for event in calm[:first_step] if event["kind"] == "member_joined" and event["role"] == "worker"
    }
    assert len(there) == 2, "the calm run has the hosts of the hurt one, from its first step on"
    assert report["hurt"]["views"] >= 3  # alone, with the other host, without it
    assert report["hurt"]["coverage"]["missed"] == report["hurt"]["coverage"]["repeated"] == 0
    mine = f"shoal-{process.pid}."  # others may be testing with hosts of their own
    assert mine in cut["member"]
    assert not [name for name in standing() if name.startswith(mine)]
    assert not processes_of(tmp_path)
