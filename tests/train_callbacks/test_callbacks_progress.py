"""What a run shows: on a terminal, in a log, with --json, however it ends."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from callback_feed import Clock, Feed
from rich.console import Console

from shoal.core.cursor import Cursor
from shoal.core.events import CheckpointSaved, Fault, MemberJoined, RunEnded, ViewChanged, Warned
from shoal.train.callbacks import Progress
from shoal.train.callbacks.display import PlainDisplay, Snapshot, bar_line
from shoal.train.callbacks.pace import Pace

pytestmark = pytest.mark.unit
HIDE_CURSOR = "\x1b[?25l"
SHOW_CURSOR = "\x1b[?25h"


def shown(tmp_path: Path, terminal: bool, **changes: object) -> tuple[Feed, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, highlight=False, color_system=None)
    progress = Progress(console)
    feed = Feed(progress, tmp_path, **changes)  # type: ignore[arg-type]
    progress._clock = feed.clock
    return feed, stream


def test_log_has_a_line_at_the_start_one_for_each_evaluation_and_a_block_at_the_end(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False, epochs=3)
    feed.start()
    for _ in range(3):
        feed.step(12)
        feed.evaluate()
    feed.end()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("training: strategy allreduce, workers 2, model 9,610 parameters")
    assert len([line for line in lines if line.startswith("epoch ") and "test_accuracy 0.9" in line]) == 3
    text = stream.getvalue()
    assert "completed in 1.8 s" in text
    assert re.search(r"test_accuracy +0\.9611", text)
    assert "5,120 samples/s" in text
    assert str(tmp_path) in text
    assert "--epochs 6" in text
    assert "\x1b" not in text


def test_log_tells_of_each_epoch_where_nothing_is_evaluated(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False, epochs=3)
    feed.start()
    feed.step(36)
    feed.end()
    steps = re.findall(r"step (\d+)/36 ", stream.getvalue())
    assert {"12", "24", "36"} <= set(steps)
    assert len(steps) == len(set(steps))


def test_log_speaks_every_tenth_of_a_long_epoch(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False, epochs=1, steps_per_epoch=1000, total_steps=1000)
    feed.step_s = 0.3
    feed.start()
    feed.step(11)
    assert stream.getvalue().count("\n") == 1
    feed.run = type(feed.run)(**{**vars(feed.run), "total_steps": 100})
    feed.start()
    for _ in range(9):
        feed.cursor = Cursor(0, 1, feed.cursor.step + 9, feed.cursor.samples + 9 * 128)
        feed.step()
    assert re.findall(r"step (\d+)/100 ", stream.getvalue()) == [str(n) for n in range(10, 100, 10)]


def test_log_speaks_every_ten_seconds_of_a_slow_run(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False, epochs=100)
    feed.step_s = 4.0
    feed.start()
    feed.step(9)
    assert re.findall(r"step (\d+)/", stream.getvalue()) == ["3", "6", "9"]
    assert "32 samples/s" in stream.getvalue()
    assert "1 h 19 min left" in stream.getvalue()


def test_terminal_shows_a_header_a_live_line_and_evaluations_above_it(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=True)
    feed.step_s = 0.5
    feed.start()
    feed.step(12)
    feed.evaluate()
    feed.step(12)
    text = stream.getvalue()
    assert re.search(r"strategy +allreduce", text)
    assert "epoch 2/4" in text
    assert "24/48" in text
    assert "samples/s" in text
    assert "left" in text
    assert "epoch 1/4  step 12/48" in text
    feed.end()
    assert "completed in 12 s" in stream.getvalue()


def test_terminal_is_redrawn_by_time_not_by_step(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=True)
    feed.step_s = 1e-4
    feed.start()
    feed.step()
    before = len(stream.getvalue())
    feed.step(30)
    assert len(stream.getvalue()) == before
    feed.clock.now += 0.3
    feed.step()
    assert len(stream.getvalue()) > before
    feed.end()


@pytest.mark.parametrize("ending", ["completed", "failed", "interrupted", "close"])
def test_terminal_is_given_back_however_a_run_ends(tmp_path: Path, ending: str) -> None:
    feed, stream = shown(tmp_path, terminal=True)
    before = sys.stdout, sys.stderr
    feed.start()
    feed.step(5)
    # what is killed cannot show the cursor again, so it must be there while the run goes on
    assert stream.getvalue().rfind(SHOW_CURSOR) > stream.getvalue().rfind(HIDE_CURSOR)
    if ending == "close":
        assert isinstance(feed.callback, Progress)
        feed.callback.close()
        feed.callback.close()
    else:
        feed.end(ending)
    assert (sys.stdout, sys.stderr) == before
    assert stream.getvalue().rfind(SHOW_CURSOR) > stream.getvalue().rfind(HIDE_CURSOR)
    length = len(stream.getvalue())
    feed.step()
    assert len(stream.getvalue()) == length


@pytest.mark.parametrize("terminal", [True, False])
def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path, terminal: bool) -> None:
    feed, stream = shown(tmp_path, terminal)
    feed.start()
    feed.step(12)
    feed.send(CheckpointSaved(feed.cursor, "checkpoints/12", 1000, 0.1))
    feed.step(2)
    feed.end("interrupted")
    text = stream.getvalue()
    assert "interrupted at step 14 of 48" in text
    assert re.search(r"checkpoint +step 12", text)
    assert feed.run.resume_command in text
    assert "try next" not in text


def test_why_a_run_failed_is_left_to_whoever_started_it(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False)
    feed.start()
    feed.step(5)
    feed.end("failed", "ZeroDivisionError: division by zero")
    assert "failed at step 5 of 48" in stream.getvalue()
    assert "ZeroDivisionError" not in stream.getvalue()


def test_where_the_same_command_can_only_fail_again_it_is_not_offered(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False)
    feed.start()
    feed.step(5)
    feed.send(RunEnded("failed", feed.cursor, "the loss became NaN", again=False))
    assert "failed at step 5 of 48" in stream.getvalue()
    assert "to go on" not in stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_breaks_lines_between_words_but_not_commands(tmp_path: Path, width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, highlight=False, color_system=None)
    words = " ".join(f"word{number}" for number in range(60))
    command = f"shoal train digits.py --run-dir {'long/' * 40}"
    progress = Progress(console)
    feed = Feed(progress, tmp_path, resume_command=command, header=(("strategy", words), ("workers", "2")))
    feed.start()
    feed.send(Warned(words))
    feed.step(5)
    feed.end("interrupted")
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip("\r") for line in stream.getvalue().splitlines()]
    assert f"  to go on       {command}" in lines
    assert not [line for line in lines if len(line) > width and command not in line and str(tmp_path) not in line]
    assert re.findall(r"word\d+", " ".join(lines)) == 2 * words.split()
    assert sum(line.startswith("            word") for line in lines) >= 3, "it goes on below its beginning"


def test_a_run_that_was_stopped_says_why(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False)
    feed.start()
    feed.step(5)
    feed.end("stopped", "test_loss did not improve")
    assert "stopped at step 5 of 48" in stream.getvalue()
    assert "test_loss did not improve" in stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_json_output_leaves_stdout_alone(tmp_path: Path, terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    feed, stream = shown(tmp_path, terminal, json_output=True)
    feed.start()
    feed.step(12)
    feed.evaluate()
    feed.send(Warned("careful"))
    feed.end()
    assert stream.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_faults_and_warnings_are_shown_as_they_happen(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False)
    feed.start()
    feed.send(Warned("dropout draws per batch"))
    feed.send(Fault(9, "worker 1 on host-b", "killed by signal 9"))
    assert "warning: dropout draws per batch" in stream.getvalue()
    assert "fault at step 9: worker 1 on host-b: killed by signal 9" in stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_who_joins_is_one_line_and_the_display_counts_who_is_there_now(tmp_path: Path, terminal: bool) -> None:
    feed, stream = shown(tmp_path, terminal)
    feed.send(MemberJoined("worker", 0, "host-a", 10))  # who begins the run stands in its header
    feed.start()
    assert "has joined" not in stream.getvalue()
    feed.step(12)
    assert "2 workers" in stream.getvalue()
    feed.run = replace(feed.run, workers=3, hosts=2)
    feed.send(MemberJoined("worker", 2, "host-b", 20))
    feed.send(ViewChanged(2, ("worker 0 on host-a", "worker 1 on host-a", "worker 2 on host-b")))
    lines = [line for line in stream.getvalue().splitlines() if "has joined" in line]
    assert [line[-70:].partition("worker 2 on")[2] for line in lines] == [
        " host-b has joined: 3 workers on 2 hosts now"
    ]
    feed.step(12)
    assert stream.getvalue().count("3 workers on 2 hosts") >= 2


def test_what_is_noted_before_the_run_begins_is_shown_when_it_does(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False)
    feed.send(Warned("a checkpoint is damaged"))
    assert stream.getvalue() == ""
    feed.start()
    feed.start()
    assert stream.getvalue().count("warning: a checkpoint is damaged") == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_of_open_length_is_told_by_time_and_epoch(tmp_path: Path, terminal: bool) -> None:
    feed, stream = shown(tmp_path, terminal, total_steps=0)
    feed.step_s = 0.01
    feed.start()
    feed.step(11)
    assert stream.getvalue().count("loss") == (1 if terminal else 0)
    feed.step(2)
    feed.step_s = 11.0
    feed.step()
    feed.end()
    text = stream.getvalue()
    assert "epoch 2" in text
    assert "/0" not in text
    assert " left" not in text
    assert "train on" not in text
    if not terminal:
        assert re.findall(r"step (\d+) ", text) == ["12", "14"]


def test_a_resumed_run_says_where_it_goes_on(tmp_path: Path) -> None:
    feed, stream = shown(tmp_path, terminal=False)
    feed.start(Cursor(epoch=1, batch=3, step=15, samples=1437 + 384))
    feed.step(10)
    assert stream.getvalue().startswith("going on from step 15")


def test_a_reader_that_has_gone_does_not_end_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    display = PlainDisplay(Gone())
    display.line("one")
    display.line("two")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 110, 200])
def test_the_live_line_fits_any_terminal(width: int) -> None:
    snapshot = Snapshot(85, 120, 8, 10, 0.6347, 3873.0, 1.1, {"test_loss": 0.46, "test_accuracy": 0.86})
    line = bar_line(snapshot, width).plain
    assert len(line) <= max(width, len("epoch 8/10  85/120"))
    assert line.startswith("epoch 8/10 ")
    if width >= 110:
        assert "loss 0.6347" in line
        assert "3,873 samples/s" in line
        assert "1.1 s left" in line
        assert "test_accuracy 0.86" in line


def test_pace_is_that_of_the_last_seconds() -> None:
    clock = Clock(0.0)
    pace = Pace(clock(), 0, 0, window_s=10.0)
    assert pace.samples_per_s is None
    for step in range(1, 101):
        clock.now += 1.0
        pace.mark(clock(), step, step * 10)
    for step in range(101, 141):
        clock.now += 0.5
        pace.mark(clock(), step, step * 10)
    assert pace.samples_per_s == pytest.approx(20.0)
    assert pace.seconds_left(240) == pytest.approx(50.0)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_loss_is_that_of_the_epoch_so_far_also_before_the_first_step_of_a_resumed_run(
    tmp_path: Path, terminal: bool
) -> None:
    feed, stream = shown(tmp_path, terminal)
    feed.train_loss = 0.625
    feed.start(Cursor(epoch=0, batch=11, step=11, samples=1408))
    feed.evaluate(test_loss=0.5)  # it was interrupted between the step and its evaluation
    assert "loss 0.625" in stream.getvalue()
    feed.step(1, loss=0.125)
    feed.evaluate(test_loss=0.25)
    assert "step 12/48  loss 0.625  test_loss 0.25" in stream.getvalue()
    assert "0.125" not in stream.getvalue()
