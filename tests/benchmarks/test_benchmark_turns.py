"""Runs that take turns: each goes on by as many steps as it is told, and stands still otherwise."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.balance import PEERS, kept, table
from benchmarks.runners.turns import Conductor, Turns

pytestmark = pytest.mark.unit
PATIENCE_S = 60.0


def test_a_run_goes_on_by_what_it_is_told(tmp_path: Path) -> None:
    conductor, steps = Conductor(tmp_path), list[int]()

    def run() -> None:
        turns = Turns(tmp_path)
        going = turns.begin()
        while going:
            steps.append(len(steps))
            going = turns.step()
        turns.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert conductor.turn(3, PATIENCE_S) >= 0.0
    assert len(steps) == 4, "the first step of a turn is not counted"
    assert conductor.turn(2, PATIENCE_S) >= 0.0
    assert len(steps) == 7
    conductor.end()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(steps) == 7
    conductor.close()


def test_a_run_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    conductor = Conductor(tmp_path)
    with pytest.raises(TimeoutError, match="3 steps were not done"):
        conductor.turn(3, 0.01)
    conductor.close()


def test_what_is_kept_of_the_summed_speed() -> None:
    """Two workers of 100 samples a second; equal shares wait for the slow one."""
    speeds = {("ddp", 1): 200.0, ("ddp", 4): 50.0, ("shoal", 1): 200.0, ("shoal", 4): 125.0}
    assert kept(speeds, "ddp", 4) == pytest.approx(0.4)
    assert kept(speeds, "shoal", 4) == pytest.approx(1.0)
    text = table([speeds], [4])
    assert f"| 4x | {PEERS['ddp'].title} | 50 | 40% |" in text
    assert "Shoal is 2.50 times as fast" in text
