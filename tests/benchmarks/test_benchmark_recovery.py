"""How faults are watched and told: what did not happen is never a number."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import faults, processes, recovery, recovery_report
from benchmarks.commits import Commit
from benchmarks.faults import Hurt, NotInTimeError, Outcome
from benchmarks.recovery_report import ROWS, Measured
from benchmarks.runners.job import Job
from benchmarks.runners.steplog import Birth, StepLog, births, note_birth, started_at
from benchmarks.subjects import Shoal, StepLogged

KILL_PAUSE = ROWS[0]


def outcome(pause_s: float | None, kind: str = "kill", watched_s: float = 60.0) -> Outcome:
    return Outcome(kind, watched_s, pause_s, pause_s, 0, None, None, None)


def job_in(directory: Path) -> Job:
    return Job("small", 0, 32, 0, 3, 32, str(directory))


class Counter(StepLogged):
    """Workers that count by themselves; one that dies is started again where the log of all ends."""

    name, title, package = "counter", "Counter", "shoal"
    script = (
        "import sys, time\n"
        "from benchmarks.runners.job import Job\n"
        "from benchmarks.runners.steplog import StepLog, note_birth\n"
        "job = Job.load(); note_birth(job); log = StepLog(job); step = int(sys.argv[1])\n"
        "while True:\n"
        "    step += 1; log.commit(step, 1); time.sleep(0.01)\n"
    )

    def begin(self, workers: int) -> None:
        for _ in range(workers):
            self.grow()

    def grow(self) -> None:
        furthest = max((one.step for one in super().commits()), default=0)
        self._start([sys.executable, "-c", self.script, str(furthest)])

    def shrink(self) -> None:
        self._end_last()

    def commits(self) -> list[Commit]:
        for process, _ in list(self._started):
            if process.poll() is not None:
                self._started = []
                self.grow()
        return super().commits()

    def trouble(self) -> str | None:
        return None  # one that has died since the last look is started again at the next


@pytest.mark.unit
def test_no_pause_is_said_in_words() -> None:
    frozen = Measured("torchrun", "kill", (outcome(None),))
    assert recovery_report.cell(KILL_PAUSE, frozen) == "not within 60 s"
    some = Measured("torchrun", "kill", (outcome(1.0), outcome(None)))
    assert recovery_report.cell(KILL_PAUSE, some) == "1.00 s (1.00 to 1.00; 1); 1 more not within 60 s"


@pytest.mark.unit
def test_a_failure_is_told_and_what_was_measured_before_it_counts() -> None:
    assert recovery_report.cell(KILL_PAUSE, Measured("x", "kill", error="no step")) == "failed: no step"
    both = Measured("x", "kill", (outcome(0.2),)) + Measured("x", "kill", (outcome(0.4),), error="no step")
    assert recovery_report.cell(KILL_PAUSE, both) == "0.300 s (0.250 to 0.350; 2)"
    assert both.error == "no step"


@pytest.mark.unit
def test_the_table_has_a_column_for_everyone_and_says_who_was_skipped() -> None:
    measured = [Measured("shoal", "kill", (outcome(0.05),)), Measured("torchft", "kill", (outcome(5.1),))]
    titles = {"shoal": "Shoal 1", "torchrun": "torchrun", "torchft": "torchft 0.2"}
    lines = recovery_report.table(measured, titles, {"torchrun": "not installed"}).splitlines()
    assert lines[0] == "| median (quartiles; how many) | Shoal 1 | torchrun | torchft 0.2 |"
    assert "0.050 s (0.050 to 0.050; 1) | skipped: not installed | 5.10 s" in lines[2]
    assert len({line.count("|") for line in lines}) == 1
    assert not any("joins" in line or "SIGSTOP" in line for line in lines)


@pytest.mark.unit
def test_whoever_does_not_say_when_it_noticed_is_not_said_to_have_missed_it() -> None:
    noticed = next(row for row in ROWS if "noticed" in row.title)
    assert recovery_report.cell(noticed, Measured("x", "freeze", (outcome(5.0, "freeze"),))) == "does not say"


@pytest.mark.unit
def test_the_share_of_membership() -> None:
    spans = {"forward": 6.0, "membership": 0.02, "membership.beat": 0.03}
    assert recovery_report.membership_share(spans, 10.0) == pytest.approx(0.005)
    assert recovery_report.membership_share({"forward": 6.0}, 10.0) is None


@pytest.mark.unit
def test_the_figures_are_json() -> None:
    measured = [Measured("shoal", "kill", (outcome(0.05), outcome(None)), (0.003,), None, ({"load_average": [1.0]},))]
    assert json.loads(json.dumps(recovery_report.figures(measured)))["shoal"]
    assert json.loads(json.dumps(measured[0].to_json()))["outcomes"][0]["pause_s"] == 0.05


@pytest.mark.unit
def test_an_outcome_by_hand() -> None:
    commits = [Commit(1.0 + 0.1 * n, n, 3) for n in range(5)]  # to 1.4
    commits += [Commit(1.9, 5, 2), Commit(2.0, 6, 2), Commit(2.6, 7, 3), Commit(2.7, 8, 3)]
    born = {1: Birth(0.1, 0.2), 2: Birth(1.5, 1.8)}
    found = faults.outcome(Hurt("kill", 1.45, 3.0), commits, born, workers=3)
    assert found.pause_s == pytest.approx(0.6)
    assert found.delay_s == pytest.approx(0.5)
    assert found.full_strength_s == pytest.approx(2.6 - 1.45)
    assert found.newcomer_s == pytest.approx(2.6 - 1.5)
    assert found.newcomer_running_s == pytest.approx(0.3)
    assert found.steps_done_again == 0


@pytest.mark.unit
def test_a_process_that_was_kept_ready_begins_when_it_is_wanted() -> None:
    commits = [Commit(1.0, 1, 3), Commit(1.6, 2, 2), Commit(1.9, 3, 3)]
    born = {1: Birth(0.1, 0.2), 2: Birth(0.3, 1.7), 3: Birth(1.65, 3.5)}  # the third is ready for the next one
    found = faults.outcome(Hurt("kill", 1.5, 3.0), commits, born, workers=3)
    assert found.full_strength_s == pytest.approx(0.4)
    assert found.newcomer_s == pytest.approx(0.4)
    assert found.newcomer_running_s == pytest.approx(0.2)


@pytest.mark.unit
def test_without_a_newcomer_its_figures_are_missing() -> None:
    commits = [Commit(1.0, 1, 3), Commit(2.0, 2, 2)]
    found = faults.outcome(Hurt("freeze", 1.5, 3.0), commits, {1: Birth(0.1, 0.2)}, workers=3)
    assert (found.pause_s, found.full_strength_s, found.newcomer_s) == (pytest.approx(1.0), None, None)


@pytest.mark.unit
def test_together_means_new_steps_by_all_up_to_the_last() -> None:
    before = [Commit(1.0, 10, 3)]
    assert not faults.steps_together(1.5, 3, count=2)(before)
    again = [Commit(2.0, 9, 3), Commit(2.1, 10, 3)]
    assert not faults.steps_together(1.5, 3, count=2)(before + again)
    new = [Commit(2.2, 11, 3), Commit(2.3, 12, 3)]
    assert faults.steps_together(1.5, 3, count=2)(before + again + new)
    assert not faults.steps_together(1.5, 3, count=2)(before + again + new + [Commit(2.4, 13, 2)])


@pytest.mark.unit
def test_notes_of_workers_are_found_again(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    note_birth(job)
    StepLog(job).commit(5, 3)
    mine = births(tmp_path)[os.getpid()]
    assert mine.started == pytest.approx(started_at(os.getpid()), abs=0.1)
    assert mine.started <= mine.running <= time.time()
    subject = Counter(Path(sys.executable), job)
    assert [(one.step, one.size, one.pid) for one in StepLogged.commits(subject)] == [(5, 3, os.getpid())]


@pytest.mark.unit
def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    subject = Shoal(Path(sys.executable), job_in(tmp_path))
    subject.run_dir.mkdir()
    path = subject.run_dir / "events.jsonl"
    assert subject.commits() == []
    whole = json.dumps({"kind": "step", "time": 1.0, "cursor": {"step": 1}})
    path.write_text(whole[:20])
    assert subject.commits() == []
    path.write_text(whole + "\n" + whole[:5])
    assert [one.step for one in subject.commits()] == [1]
    fault = json.dumps({"kind": "fault", "time": 4.5, "cause": "lost"})
    path.write_text(f"{whole}\n{fault}\n")
    assert len(subject.commits()) == 1
    assert subject.noticed(since=2.0) == pytest.approx(2.5)
    assert subject.noticed(since=5.0) is None


@pytest.mark.unit
def test_what_was_measured_is_told_even_if_not_all_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = recovery.arguments(["--json", str(tmp_path / "r.json"), "--out", str(tmp_path / "r.md")])
    environment = {"cpu": "a", "cores": 2, "load_average": [0.5], "date": "2026-01-01T", "versions": {"torch": "2"}}
    shares = {"small": {"error": "no"}, "mlp": {"share": 0.001, "steps": 10, "total_s": 0.1, "spans": {}}}
    measured = [Measured("shoal", "kill", (outcome(0.05),))]
    recovery.tell(options, environment, {"shoal": "Shoal", "torchft": "torchft"}, {}, measured, shares)
    text = capsys.readouterr().out
    assert "0.050 s (0.050 to 0.050; 1) | not run |" in text
    assert "small: failed: no" in text
    assert "10.0 ms a step: 0.100% of the time" in text
    assert (tmp_path / "r.md").read_text() == text
    assert json.loads((tmp_path / "r.json").read_text())["settings"]["kills"] == 20


@pytest.mark.unit
def test_quick_is_short_but_for_what_is_asked_for() -> None:
    options = recovery.arguments(["--quick", "--kills", "7"])
    assert (options.kills, options.joins, options.freezes) == (7, 1, 1)
    assert recovery.arguments([]).kills == 20


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Counter]:
    with processes.ending_orphans():
        yield Counter(Path(sys.executable), job_in(tmp_path))


@pytest.mark.ranks
def test_a_kill_is_done_and_watched_to_its_end(counter: Counter) -> None:
    hurts = list(faults.kills(counter, workers=1, count=2, draw=random.Random(0), timeout_s=60))
    assert [one.kind for one in hurts] == ["kill", "kill"]
    assert len(counter.births()) == 3
    for one in hurts:
        found = faults.outcome(one, counter.commits(), counter.births(), workers=1)
        assert found.pause_s is not None
        assert found.newcomer_s is not None
        assert found.full_strength_s is not None
        assert 0 < found.full_strength_s <= found.watched_s
        # the kernel tells the start of a process in whole ticks, rounded down
        assert 0 < found.newcomer_s <= found.full_strength_s + faults.CLOCK_S
        assert found.steps_done_again == 0


@pytest.mark.ranks
def test_what_does_not_come_within_the_limit_raises(counter: Counter) -> None:
    counter.begin(1)
    faults.wait_for(counter, "a step", faults.steps_together(0.0, 1, count=1), timeout_s=60)
    (worker,) = counter.workers()
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises(NotInTimeError, match="no other step within 0 s"):
        faults.wait_for(counter, "other step", faults.steps_beyond(time.time() + 1), timeout_s=0.2)


@pytest.mark.ranks
def test_a_run_that_has_ended_says_why(tmp_path: Path) -> None:
    with processes.ending_orphans():
        subject = Shoal(Path(sys.executable), job_in(tmp_path))
        subject._start([sys.executable, "-c", "raise ValueError('no such thing')"])
        with pytest.raises(NotInTimeError, match="ValueError: no such thing"):
            faults.wait_for(subject, "a step", faults.steps_beyond(0.0), timeout_s=60)


@pytest.mark.ranks
def test_the_command_explains_itself() -> None:
    script = Path(recovery.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "torchft" in done.stdout
    assert "--kills" in done.stdout
