"""`shoal train` hands the launcher what was asked for; help teaches; output stays clean."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import main
from shoal.comm.codecs.names import CODECS
from shoal.core.errors import WorkerFailed
from shoal.launch import launcher
from shoal.launch.job import Job, Outcome
from shoal.strategies.names import STRATEGIES

DEADLINE_S = 120.0


class Jobs:
    """Stands in for the launcher: keeps the job, and returns or raises what it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.outcome: Outcome | Exception = Outcome(0)

    def __call__(self, job: Job, nursery: Any = None) -> Jobs:
        self.jobs.append(job)
        return self

    def run(self) -> Outcome:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    jobs = Jobs()
    monkeypatch.setattr(launcher, "Launcher", jobs)
    return jobs


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "digits.py").write_text("")
    return str(tmp_path / "digits.py")


@pytest.mark.unit
def test_a_job_is_what_was_asked_for(jobs: Jobs, script: str) -> None:
    words = ["-w", "2", "--strategy", "allreduce", "--seed", "7", "--epochs", "3", "--run-dir", "runs/mine"]
    words += ["--codec", "topk:0.05", "--encrypt", "on", "--once", "off"]
    more = ["--set", "threads=1", "--set", "clip.norm=1", "--dry-run", "--", "--data", "x", "--workers", "9"]
    assert main(["train", script, *words, *more]) == 0
    (job,) = jobs.jobs
    assert (job.workers, job.script, job.mode, job.threads) == (2, script, "dry-run", 1)
    assert job.script_args == ("--data", "x", "--workers", "9")
    assert job.layers == (
        (
            "the command line",
            {
                "workers": 2,
                "strategy": "allreduce",
                "comm.codec": "topk:0.05",
                "comm.encrypt": "on",
                "loader.once": "off",
                "run_dir": "runs/mine",
                "epochs": 3,
                "seed": 7,
                "threads": 1,
                "clip.norm": 1,
            },
        ),
    )
    assert not job.json_output


@pytest.mark.unit
def test_without_options_there_is_one_worker_and_the_script_decides(jobs: Jobs, script: str) -> None:
    assert main(["train", script]) == 0
    (job,) = jobs.jobs
    assert (job.workers, job.mode, job.threads, job.layers) == (1, "train", 1, (("the command line", {}),))


@pytest.mark.unit
def test_json_is_the_summary_and_nothing_else(jobs: Jobs, script: str, capfd: pytest.CaptureFixture[str]) -> None:
    jobs.outcome = Outcome(0, {"strategy": "allreduce", "final": {"test_accuracy": 0.9}})
    assert main(["train", script, "--json"]) == 0
    assert jobs.jobs[0].json_output
    assert json.loads(capfd.readouterr().out) == jobs.outcome.summary


@pytest.mark.unit
@pytest.mark.parametrize("status", [0, 1, 2, 130])
def test_the_status_is_that_of_the_run(jobs: Jobs, script: str, status: int) -> None:
    jobs.outcome = Outcome(status)
    assert main(["train", script]) == status


@pytest.mark.unit
def test_a_failure_has_its_own_status(jobs: Jobs, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    jobs.outcome = WorkerFailed({1: "worker 1: ZeroDivisionError"})
    assert main(["train", script]) == 1
    assert "shoal: error: worker 1: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.unit
def test_help_teaches(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    text = capfd.readouterr().out
    for word in ("--workers", "--dry-run", "--json", "Examples", "--set weights=[3,1]", "checkpoint.every"):
        assert word in text
    for name in (*STRATEGIES, *CODECS, "--codec", "--encrypt", "auto|on|off"):
        assert name in text, f"{name} is not taught"
    assert main([]) == 0
    assert "train" in capfd.readouterr().out
    assert main(["settings"]) == 0
    assert "[low, high]" in " ".join(capfd.readouterr().out.split())
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("shoal ")


@pytest.mark.ranks
def test_a_real_run_prints_its_summary(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "digits.py"
    words = [
        "train",
        str(script),
        "-w",
        "2",
        "--epochs",
        "1",
        "--run-dir",
        "mine",
        "--json",
        "--set",
        "threads=1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["workers"], summary["epochs"], summary["status"]) == (2, 1, "completed")
    assert summary == json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert (tmp_path / "mine" / "history.csv").read_text().count("\nstep,") == summary["steps"]


@pytest.mark.ranks
def test_ctrl_c_before_the_run_begins_ends_everything(tmp_path: Path) -> None:
    """A pipe as the --config file holds the command line up while torch is being imported."""
    (tmp_path / "digits.py").write_text("")
    pipe = tmp_path / "run.yaml"
    os.mkfifo(pipe)
    words = ["train", str(tmp_path / "digits.py"), "--config", str(pipe)]
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with pipe.open("w"):  # opens once the command line reads it
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    # stderr has ended, so nobody holds it any more: the process that imports torch is gone as well
    assert process.returncode == 130
    assert "Traceback" not in errors
