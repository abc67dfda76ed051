"""Early stopping: when, why, and the same after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from callback_feed import Feed

from shoal.core.cursor import Cursor
from shoal.core.errors import ConfigError
from shoal.core.events import Evaluated
from shoal.launch.rundir import RunDir
from shoal.train.callbacks import EarlyStopping, Stop

pytestmark = pytest.mark.unit


def stops_at(callback: EarlyStopping, values: list[float], run_dir: Path) -> int | None:
    """The number of the evaluation that stops the run, from 1."""
    feed = Feed(callback, run_dir, epochs=20)
    feed.start()
    for number, value in enumerate(values, 1):
        feed.step()
        if isinstance(feed.evaluate(test_loss=value), Stop):
            return number
    return None


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([3.0, 2.0, 1.0, 0.5, 0.4], {}, None),
        ([3.0, 2.0, 2.1, 2.2, 2.3], {}, 5),
        ([3.0, 2.0, 2.1, 2.2, 1.9, 2.0, 2.0], {}, None),
        ([3.0, 2.0, 2.0], {"patience": 1}, 3),
        ([3.0, 2.95, 2.9, 2.85], {"patience": 3, "min_delta": 0.5}, 4),
        ([0.1, 0.2, 0.3, 0.4], {"mode": "max"}, None),
        ([0.4, 0.3, 0.2, 0.1], {"mode": "max"}, 4),
        ([float("nan")] * 3, {}, 3),
        ([float("nan"), 1.0, float("nan"), 2.0, 3.0], {}, 5),
    ],
)
def test_stops_after_patience_evaluations_without_gain(
    values: list[float], options: dict[str, object], expected: int | None, tmp_path: Path
) -> None:
    assert stops_at(EarlyStopping(**options), values, tmp_path) == expected  # type: ignore[arg-type]


def test_says_why(tmp_path: Path) -> None:
    feed = Feed(EarlyStopping(patience=1), tmp_path)
    feed.start()
    feed.step()
    feed.evaluate(test_loss=0.25)
    feed.step()
    stop = feed.evaluate(test_loss=0.5)
    assert stop == Stop("test_loss did not improve in 1 evaluations (best 0.25 at step 1)")


def test_an_unknown_value_is_answered_with_what_was_measured(tmp_path: Path) -> None:
    feed = Feed(EarlyStopping(monitor="test_acc"), tmp_path)
    feed.start()
    with pytest.raises(ConfigError, match=r"did you mean 'test_accuracy'.*test_loss"):
        feed.evaluate()


@pytest.mark.parametrize("options", [{"patience": 0}, {"min_delta": -1.0}, {"mode": "up"}])
def test_bad_arguments_are_named(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        EarlyStopping(**options)  # type: ignore[arg-type]


def test_a_resumed_run_stops_where_an_unbroken_one_would(tmp_path: Path) -> None:
    values = [3.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    assert stops_at(EarlyStopping(), values, tmp_path / "whole") == 5
    run_dir = RunDir(tmp_path)
    for step, value in enumerate(values[:4], 1):
        run_dir.append(Evaluated(Cursor(0, step, step, step), {"test_loss": value}, 0.1))
    with run_dir.events_file.open("a") as file:
        file.write('{"kind":"eval","cur')
    resumed = Feed(EarlyStopping(), tmp_path, epochs=20)
    resumed.start(Cursor(0, 3, 3, 3 * 128))  # the evaluation at step 4 lies past the checkpoint: it is done again
    assert resumed.evaluate(test_loss=values[2]) is None  # measured again where the run was interrupted
    resumed.step()
    assert resumed.evaluate(test_loss=values[3]) is None
    resumed.step()
    assert isinstance(resumed.evaluate(test_loss=values[4]), Stop)
