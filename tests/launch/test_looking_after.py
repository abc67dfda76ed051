"""What an agent sees of its workers from outside, and what it writes down of their ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launches import eventually

from shoal.core.vitals import Pulse, Vitals, look_at
from shoal.core.world import Member
from shoal.launch.examination import Examination
from shoal.launch.failure import Casualty, account_of_end, account_of_freeze, account_of_hang, render
from shoal.launch.memory import OutOfMemory
from shoal.launch.record import Record

MEMBER = Member("worker", 1, "here", 77)


@pytest.mark.unit
def test_a_pulse_is_felt_where_the_processor_was_used_or_the_kernel_is_waited_for() -> None:
    pulse = Pulse(0.0)
    assert pulse.feel(Vitals("S", 5), 1.0), "a new one lives"
    assert not pulse.feel(Vitals("S", 5), 2.0)
    assert pulse.feel(Vitals("R", 6), 3.0)
    assert not pulse.feel(Vitals("T", 7), 4.0), "who is stopped does not live, whatever it did before"
    assert pulse.feel(Vitals("D", 7), 5.0)
    assert not pulse.feel(None, 6.0)
    assert (pulse.alive_s, pulse.state) == (5.0, "D")


@pytest.mark.ranks
def test_the_state_of_a_process_is_seen() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            os.kill(process.pid, signal.SIGSTOP)
            eventually(lambda: (vitals := look_at(process.pid)) is not None and vitals.state == "T")
        finally:
            process.kill()
    assert look_at(process.pid) is None


@pytest.mark.unit
def test_an_end_for_want_of_memory_is_known_for_a_while(tmp_path: Path) -> None:
    counters, log = tmp_path / "vmstat", tmp_path / "none"
    counters.write_text("nr_free_pages 1\noom_kill 3\n")
    memory = OutOfMemory(0.0, counters, log)
    assert not memory.killed(7)
    counters.write_text("oom_kill 4\n")
    assert memory.killed(7)
    for now_s in (6.0, 12.0):
        memory.look(now_s)
    assert not memory.killed(7)
    assert not OutOfMemory(0.0, tmp_path / "missing", log).killed(7)
    assert account_of_end(-9, out_of_memory=True).cause == "ended by the kernel: out of memory (SIGKILL)"
    assert account_of_end(-11, out_of_memory=True).cause == "killed by signal 11 (SIGSEGV)"


def lost(view: int, failed_s: float) -> Casualty:
    return Casualty(1, account_of_end(-9), 7, "reduce", detected_s=0.01, view=view, failed_s=failed_s)


@pytest.mark.unit
def test_a_fault_is_got_over_by_the_first_step_of_a_later_view(tmp_path: Path) -> None:
    record = Record(str(tmp_path), 0)
    record.enter(lost(1, 10.0), MEMBER)
    record.resumed(1, 10.2)  # still of the old view
    record.resumed(2, 10.5)
    record.resumed(3, 12.0)
    record.enter(lost(2, 11.0), MEMBER)  # entered late: a frozen one is looked at first
    record.enter(lost(3, 13.0), MEMBER)
    record.enter(lost(0, 13.0), MEMBER)
    assert [fault["resumed_s"] for fault in record.faults()] == [0.5, 1.0, None, 0.0]
    late = Record(str(tmp_path), 0)
    late.resumed(2, 10.5)
    late.enter(lost(1, 11.0), MEMBER)  # a busy agent hears of the silence when the others have long gone on
    assert [fault["resumed_s"] for fault in late.faults()] == [0.0]


@pytest.mark.unit
def test_faults_are_added_to_the_summary_that_the_run_has_written(tmp_path: Path) -> None:
    record = Record(str(tmp_path), 0)
    assert record.conclude(failed=False, workers=2) is None
    record.run_dir.write_summary({"status": "completed", "faults": [{"cause": "before it was resumed"}]})
    record.enter(lost(1, 10.0), MEMBER)
    summary = record.conclude(failed=False, workers=2)
    assert summary is not None
    assert summary == record.run_dir.summary()
    assert summary["status"] == "completed"
    assert [fault["cause"] for fault in summary["faults"]] == ["before it was resumed", "killed by signal 9 (SIGKILL)"]
    other = Record(str(tmp_path / "failed"), 0)
    other.run_dir.path.mkdir()
    assert other.conclude(failed=True, workers=2) == {"workers": 2, "status": "failed", "faults": []}


@pytest.mark.unit
def test_faults_of_failed_attempts_add_up_beside_the_result_that_stays(tmp_path: Path) -> None:
    first = Record(str(tmp_path), 0)
    first.run_dir.write_summary({"status": "completed", "faults": [{"cause": "long ago"}]})
    before = first.run_dir.summary_file.read_bytes()
    now_ns = time.time_ns() + 10**9
    for attempt in (1, 2):
        record = Record(str(tmp_path), now_ns)
        record.enter(lost(1, 10.0), MEMBER)
        told = record.conclude(failed=True, workers=2)
        assert told is not None
        assert (told["status"], len(told["faults"])) == ("failed", attempt)
        assert record.kept == "completed"
        assert record.run_dir.summary_file.read_bytes() == before
    assert [fault["cause"] for fault in first.run_dir.faults()] == ["long ago", *["killed by signal 9 (SIGKILL)"] * 2]


@pytest.mark.unit
def test_a_frozen_and_a_hung_worker_are_shown_with_their_stacks() -> None:
    frozen = Casualty(1, account_of_freeze("T", "no sign of life for 2.1 s"), 3, "forward", stack='  File "a.py"')
    text = render({4: frozen}, 3, "here", {4: "its last output:\n  hm"})
    assert text == (
        "shoal: worker 1 of 3 on here failed at step 3 (forward)\n\nstopped by a signal (SIGSTOP), no sign of life for "
        "2.1 s. Somebody has stopped the process, and nobody let it go on.\n\n"
        'its stack, taken from outside (innermost last):\n  File "a.py"'
    )
    hung = Casualty(1, account_of_hang(61.2, "forward", "elastic.hang_s"), 3, "forward")
    assert "no progress for 61 s in forward" in render({4: hung}, 3, "here", {4: "its last output:\n  hm"})
    assert render({4: hung}, 3, "here", {4: "its last output:\n  hm"}).endswith("  hm")


@pytest.mark.ranks
def test_stacks_are_taken_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(pid: int) -> str | None:
        if pid == 3:
            raise OSError("gone")
        return f"frames of {pid}" if pid == 1 else None

    monkeypatch.setattr("shoal.launch.examination.take_stack", take)
    examination = Examination()
    found: dict[int, str] = {}
    try:
        for number in (1, 2, 3):
            examination.begin(number, number)
        poll = select.poll()
        poll.register(examination, select.POLLIN)
        while len(found) < 3:
            assert poll.poll(60_000), found
            found.update(examination.results())
    finally:
        examination.close()
    assert found == {1: "frames of 1", 2: "", 3: ""}
