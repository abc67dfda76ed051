"""The writer: what is saved is the state at the call, and whoever trains hears of what went wrong."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import assert_belongs_together, cursor_at, names_in, save, state_at, whole

from shoal.checkpoint.catalog import Catalog, name_of
from shoal.checkpoint.format import read, write_snapshot
from shoal.checkpoint.writer import Writer
from shoal.core.errors import CheckpointError
from shoal.core.state import ShardedState

pytestmark = pytest.mark.unit

DEADLINE_S = 60.0


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path)
    yield writer
    writer.close()


class Gate:
    """Holds the background at the start of a write until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

        def gated(*arguments: Any) -> Any:
            self.reached.set()
            assert self._open.wait(DEADLINE_S)
            return write_snapshot(*arguments)

        monkeypatch.setattr("shoal.checkpoint.writer.write_snapshot", gated)

    def open(self) -> None:
        self._open.set()


def keep(writer: Writer, step: int, state: ShardedState | None = None, **meta: float) -> None:
    writer.save(name_of(step), [state or state_at(step)], cursor_at(step), {"step": step, **meta})


def test_what_is_saved_is_the_state_at_the_call(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    for step in (1, 2):  # the second time the room of the first is used again
        state, meta = state_at(step), {"step": step}
        writer.save(name_of(step), [state], cursor_at(step), meta)
        assert gate.reached.wait(DEADLINE_S)
        for piece in state.pieces.values():
            piece.tensor.fill_(-1)
        state.values["optimizer"]["step"] = -1
        meta["step"] = -1
        gate.open()
        writer.flush(DEADLINE_S)
        assert_belongs_together(read(tmp_path / name_of(step)))


def test_poll_tells_each_once(writer: Writer, tmp_path: Path) -> None:
    assert writer.poll() == []
    keep(writer, 3, test_loss=0.5)
    writer.flush(DEADLINE_S)
    (saved,) = writer.poll()
    assert (saved.cursor, saved.path, saved.meta) == (
        cursor_at(3),
        tmp_path / name_of(3),
        {"step": 3, "test_loss": 0.5},
    )
    assert saved.size_bytes == (saved.path / "state-00000.safetensors").stat().st_size
    assert 0 < saved.seconds < DEADLINE_S
    assert writer.poll() == []


def test_a_save_while_the_last_is_written_waits_and_counts_the_time(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    keep(writer, 1)
    assert writer.waited_s == 0.0
    assert gate.reached.wait(DEADLINE_S)
    opener = threading.Timer(0.05, gate.open)
    opener.start()
    keep(writer, 2)
    opener.join()
    assert writer.waited_s >= 0.04
    writer.flush(DEADLINE_S)
    assert [saved.cursor.step for saved in writer.poll()] == [1, 2]


def test_a_disk_that_does_not_answer_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path, patience_s=0.05)
    gate = Gate(monkeypatch)
    keep(writer, 1)
    with pytest.raises(CheckpointError, match="step-00000001 to be written: the disk does not answer"):
        keep(writer, 2)
    with pytest.raises(CheckpointError, match="disk does not answer"):
        writer.flush(0.01)
    gate.open()
    writer.close(DEADLINE_S)
    assert names_in(tmp_path) == [name_of(1)]


def test_a_changed_layout_gets_new_room(writer: Writer, tmp_path: Path) -> None:
    for step, elements in ((1, 10), (2, 20), (3, 5)):
        keep(writer, step, state_at(step, tensors=step, elements=elements))
        writer.flush(DEADLINE_S)
        checkpoint = read(tmp_path / name_of(step))
        assert_belongs_together(checkpoint)
        assert [piece.shape for piece in checkpoint.state.pieces.values()] == [(elements,)] * step


def test_saving_again_does_not_allocate(writer: Writer) -> None:
    state = whole({f"model.{i}": torch.randn(1000) for i in range(5)})
    keep(writer, 1, state)
    writer.flush(DEADLINE_S)
    with torch.profiler.profile(profile_memory=True) as profile:
        keep(writer, 2, state)
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.events() or [])
    assert allocated < 4000, f"{allocated} bytes for {5 * 4000} bytes of state"


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    writer = Writer(tmp_path, keep_last=2, keep_best=1, monitor="test_loss", mode="min")
    losses = {1: 0.9, 2: 0.2, 3: 0.5, 4: float("nan"), 5: 0.4}
    for step, loss in losses.items():
        keep(writer, step, test_loss=loss)
    writer.close()
    assert names_in(tmp_path) == [name_of(step) for step in (2, 4, 5)]
    # a writer that resumes knows the best of before
    writer = Writer(tmp_path, keep_last=1, keep_best=1, monitor="test_loss", mode="min")
    keep(writer, 6, test_loss=0.3)
    writer.close()
    assert names_in(tmp_path) == [name_of(step) for step in (2, 6)]


def test_a_damaged_checkpoint_from_later_never_costs_the_one_just_written(tmp_path: Path) -> None:
    for step in (40, 50):
        save(tmp_path, step)
    file = tmp_path / name_of(50) / "state-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    writer = Writer(tmp_path, keep_last=1, keep_best=0)
    keep(writer, 45)
    writer.close()
    newest = Catalog(tmp_path).newest_valid(lambda line: None)
    assert newest is not None
    assert newest.cursor.step == 45
    assert names_in(tmp_path) == [name_of(45), name_of(50)]


def test_what_the_background_raises_is_raised_once_and_the_writer_goes_on(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(writer, 1)
    writer.flush(DEADLINE_S)
    with monkeypatch.context() as broken:

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        broken.setattr(os, "fsync", full)
        keep(writer, 2)
        writer.flush(DEADLINE_S)
        with pytest.raises(OSError, match="No space left"):
            writer.poll()
        assert [saved.cursor.step for saved in writer.poll()] == [1]
        keep(writer, 3)
        writer.flush(DEADLINE_S)
        with pytest.raises(OSError, match="No space left"):
            keep(writer, 4)
    assert names_in(tmp_path) == [name_of(1)]
    keep(writer, 5)
    writer.flush(DEADLINE_S)
    assert [saved.cursor.step for saved in writer.poll()] == [5]


def test_state_that_cannot_be_saved_is_refused_at_the_call(writer: Writer, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"values\.x is a set"):
        keep(writer, 1, ShardedState({}, {"x": {1}}))
    with pytest.raises(CheckpointError, match="sparse"):
        keep(writer, 1, whole({"model.s": torch.eye(2).to_sparse()}))
    keep(writer, 1)
    writer.flush(DEADLINE_S)
    assert_belongs_together(read(tmp_path / name_of(1)))


def test_close_writes_what_is_left_and_ends_the_thread(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    keep(writer, 1)
    writer.close()
    assert [saved.cursor.step for saved in writer.poll()] == [1]
    assert not any(thread.name == "shoal-checkpoint-writer" for thread in threading.enumerate())
    with pytest.raises(AssertionError, match="closed"):
        keep(writer, 2)
