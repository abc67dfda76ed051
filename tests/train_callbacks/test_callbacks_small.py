"""Learning-rate monitor, TensorBoard, and what a run has by default."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from callback_feed import Feed

from shoal.core.config import Config
from shoal.core.cursor import Cursor
from shoal.core.errors import UserError
from shoal.train import callbacks
from shoal.train.callbacks import LearningRateMonitor, TensorBoard, default_callbacks

pytestmark = pytest.mark.unit


def test_learning_rates_are_kept_by_step_and_cut_at_a_resume(tmp_path: Path) -> None:
    monitor = LearningRateMonitor()
    feed = Feed(monitor, tmp_path)
    feed.start()
    feed.step(5)
    assert monitor.history == [(step, (0.1,)) for step in range(1, 6)]
    feed.start(Cursor(0, 3, 3, 384))
    feed.step(1)
    assert [step for step, _ in monitor.history] == [1, 2, 3, 4]


def test_tensorboard_writes_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    feed = Feed(TensorBoard(), tmp_path)
    feed.start()
    feed.step(12)
    feed.evaluate(test_loss=0.5)
    feed.end()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("train/loss")] == list(range(1, 13))
    assert [event.value for event in read.Scalars("eval/test_loss")] == [0.5]
    assert "learning_rate/group_0" in read.Tags()["scalars"]


def test_tensorboard_that_is_missing_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'shoal\[tensorboard\]'"):
        Feed(TensorBoard(), tmp_path).start()


def test_defaults() -> None:
    config = Config(global_batch=1, epochs=1)
    assert [type(callback).__name__ for callback in default_callbacks(config)] == ["Progress", "History"]
    with_curves = config.model_copy(update={"tensorboard": True})
    assert isinstance(default_callbacks(with_curves)[-1], TensorBoard)


def test_public_names_are_there() -> None:
    for name in callbacks.__all__:
        assert hasattr(callbacks, name)
