"""Who makes a data set at a place is alone there, and leaves nothing behind."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from shoal.core.errors import UserError
from shoal.data import prepare
from shoal.data.places import Place
from shoal.data.preparing.alone import LOCK, alone_at

pytestmark = pytest.mark.unit


def test_a_second_thread_is_refused_and_the_folder_is_gone_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "_work"
    with alone_at(Place.of(tmp_path / "set"), folder):
        with (
            pytest.raises(UserError, match=f"is being prepared already, by process {os.getpid()}"),
            alone_at(Place.of(tmp_path / "set"), folder),
        ):
            pass
        assert (folder / LOCK).exists(), "who was refused has not taken it away"
    assert not (tmp_path / "set").exists()
    with alone_at(Place.of(tmp_path / "set"), folder):
        (folder / "work").touch()
    assert [path.name for path in folder.iterdir()] == ["work"]


def test_a_lock_that_was_removed_meanwhile_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = []

    def lock(file: object, how: int) -> None:
        locked.append(file)
        if len(locked) == 1:  # the one who held it ends between our opening and our locking
            (tmp_path / LOCK).unlink()

    monkeypatch.setattr(fcntl, "lockf", lock)
    with alone_at(Place.of(tmp_path), tmp_path):
        assert len(locked) == 2
        assert (tmp_path / LOCK).read_text() == str(os.getpid())


def test_a_disk_without_locks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with alone_at(Place.of(tmp_path / "set"), tmp_path / "set"):
        pass


def test_a_folder_that_cannot_be_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(UserError, match=r"a\.csv"):
        prepare(tmp_path / "a.csv", tmp_path / "a.csv" / "set")
    with pytest.raises(UserError, match=r"a\.csv is a file: give a folder for what is spilled"):
        prepare(tmp_path / "a.csv", tmp_path / "set", work=tmp_path / "a.csv")
