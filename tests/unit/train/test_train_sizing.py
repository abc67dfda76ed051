"""Where a run may choose the number of its workers itself, and where that is refused before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shoal.comm.control import ControlPage
from shoal.core.config import resolve
from shoal.core.errors import ConfigError
from shoal.core.world import World
from shoal.elastic.attendance import FixedAttendance
from shoal.launch.session import Layer, Session
from shoal.strategies.select import choose_strategy
from shoal.strategies.sizing import Bounds
from shoal.train.sizing import bounds_of

AUTO: dict[str, Any] = {"elastic.size": "auto", "elastic.max_workers": 4, "elastic.min_workers": 2}
FLAGS: Layer = ("the command line", AUTO)


@pytest.fixture
def control() -> Iterator[ControlPage]:
    page = ControlPage()
    yield page
    page.close()


def bounds(
    control: ControlPage, strategy: str, *layers: Layer, workers: int = 2, elastic: bool = True
) -> Bounds | None:
    attendance = FixedAttendance(World(), None)
    attendance.survives = elastic
    session = Session(World(), control, layers, given_attendance=attendance, workers=workers)
    config = resolve(("Trainer(...)", {"global_batch": 8, **AUTO}), *layers)
    return bounds_of(config, choose_strategy(strategy, workers, config.hybrid), session)


def test_the_bounds_are_those_that_the_user_states(control: ControlPage) -> None:
    assert bounds(control, "incremental", FLAGS) == Bounds(2, 4)
    assert bounds(control, "allreduce", ("the command line", {"elastic.size": "fixed"})) is None


@pytest.mark.parametrize("strategy", ["single", "allreduce", "hybrid"])
def test_a_strategy_that_does_not_measure_is_refused(control: ControlPage, strategy: str) -> None:
    with pytest.raises(ConfigError, match=rf"strategy {strategy} does not measure .*--strategy incremental"):
        bounds(control, strategy, FLAGS)


def test_a_script_on_its_own_is_refused(control: ControlPage) -> None:
    with pytest.raises(ConfigError, match=r"nobody to start workers .*shoal train"):
        bounds(control, "incremental", elastic=False)


def test_a_lone_worker_must_have_been_started_as_one_of_several(control: ControlPage) -> None:
    with pytest.raises(ConfigError, match=r"max_workers=4 is stated in the script.*give --max-workers"):
        bounds(control, "incremental", workers=1)
    assert bounds(control, "incremental", FLAGS, workers=1) == Bounds(2, 4)
    assert bounds(control, "incremental", workers=2) == Bounds(2, 4)


def test_nothing_says_how_many_there_may_be() -> None:
    with pytest.raises(ConfigError, match="give --max-workers"):
        resolve(("Trainer(...)", {"global_batch": 8}), ("the command line", {"elastic.size": "auto"}))
