"""Copying in the background: what fails is tried again, what stays away is told once, nothing stops training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from checkpoint_cases import assert_belongs_together, cursor_at, names_in, save, state_at
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from shoal.checkpoint.catalog import Catalog, name_of
from shoal.checkpoint.format import write
from shoal.checkpoint.mirror import Mirror, Owner
from shoal.checkpoint.mirroring import Mirroring, pause_s
from shoal.checkpoint.retention import to_remove
from shoal.core.events import Mirrored
from shoal.core.places import Place

MINE = Owner("a", {})
PATIENCE_S = 60.0


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(Place.of(tmp_path / "mirror"))


@pytest.fixture
def mirroring(mirror: Mirror) -> Iterator[Mirroring]:
    running = Mirroring(mirror, MINE, lambda records: to_remove(records, 1, 0, "", "min"))
    yield running
    running.close()


def come(mirroring: Mirroring, status: str) -> Mirrored:
    """Wait for this news."""
    for _ in range(int(PATIENCE_S / 0.01)):
        for news in mirroring.poll():
            if news.status == status:
                return news
        mirroring.wait(0.01)
    raise AssertionError(f"{status} did not come")


def names(mirror: Mirror) -> list[str]:
    return [entry.name for entry in mirror.entries()]


@given(st.integers(1, 2000))
def test_pauses_double_up_to_half_a_minute(failures: int) -> None:
    assert pause_s(failures) <= 30.0
    assert pause_s(failures + 1) == min(30.0, 2 * pause_s(failures))


def test_what_is_offered_arrives_and_older_ones_go(mirroring: Mirroring, mirror: Mirror, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        mirroring.offer(save(tmp_path / "here", step))
        assert mirroring.wait(PATIENCE_S)
        news = mirroring.poll()
        assert [(one.checkpoint, one.status) for one in news] == [(name_of(step), "copied")]
        assert news[0].size_bytes > 0
        assert names(mirror) == [name_of(step)]
    mirroring.offer(tmp_path / "here" / name_of(3))
    assert mirroring.wait(PATIENCE_S)
    assert mirroring.poll() == [], "what is there is not copied again"


def test_a_place_that_stays_away_is_told_once_and_gets_the_newest_when_it_is_back(
    mirroring: Mirroring, mirror: Mirror, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "mirror"
    in_the_way.write_text("no folder can be made here")
    mirroring.offer(save(tmp_path / "here", 1))
    away = come(mirroring, "away")
    assert away.checkpoint == name_of(1)
    assert away.reason
    for step in (2, 3, 4):
        mirroring.offer(save(tmp_path / "here", step))
    assert not mirroring.wait(0.3)
    assert mirroring.poll() == [], "told once"
    under = mirroring.under
    assert under is not None
    in_the_way.unlink()
    mirroring.offer(save(tmp_path / "here", 5))
    assert mirroring.wait(PATIENCE_S)
    assert [(one.checkpoint, one.status) for one in mirroring.poll()] == [(name_of(5), "copied")]
    assert names(mirror) == [name_of(5)]


def test_what_is_no_longer_kept_here_is_passed_over(mirroring: Mirroring, tmp_path: Path) -> None:
    mirroring.offer(tmp_path / "here" / name_of(1))
    assert mirroring.wait(PATIENCE_S)
    assert mirroring.poll() == []


def test_what_is_damaged_here_is_told_and_not_tried_again(mirroring: Mirroring, mirror: Mirror, tmp_path: Path) -> None:
    source = save(tmp_path / "here", 1)
    (source / "manifest.json").write_bytes(b"{}")
    mirroring.offer(source)
    assert mirroring.wait(PATIENCE_S)
    (news,) = mirroring.poll()
    assert news.status == "failed"
    assert "manifest.json is damaged" in news.reason
    assert names(mirror) == []


def test_the_mirror_of_another_run_is_told_and_left_alone(mirror: Mirror, tmp_path: Path) -> None:
    mirror.claim(Owner("b", {}))
    running = Mirroring(mirror, MINE, lambda records: [])
    running.offer(save(tmp_path / "here", 1))
    assert "is the mirror of another run" in come(running, "away").reason
    running.close()
    assert names(mirror) == []


def test_a_full_mirror_is_told_and_served_when_there_is_space(tmp_path: Path, make_disk: Callable[[str], Path]) -> None:
    disk = make_disk("256k")
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * (248 << 10))
    mirror = Mirror(Place.of(disk / "mirror"))
    running = Mirroring(mirror, MINE, lambda records: [])
    running.offer(_large(tmp_path / "here", 3))
    assert come(running, "away").reason == "no space left there: free some"
    assert names(mirror) == []
    ballast.unlink()
    assert running.wait(PATIENCE_S)
    assert names(mirror) == [name_of(3)]
    running.close()


def _large(directory: Path, step: int) -> Path:
    return write(directory, name_of(step), [state_at(step, elements=4000)], cursor_at(step), {"step": step})


class Unreliable(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A disk on which every third file that is written has a wrong bit, and every fifth is refused."""

    protocol = "unreliable"
    cacheable = False
    written = itertools.count(1)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("unreliable://"))

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        file = super()._open(path, mode, **more)
        if "w" in mode:
            number = next(self.written)
            if number % 5 == 0:
                file.close()
                raise OSError("the place stalls")
            if number % 3 == 0:
                write = file.write
                file.write = lambda data: write(bytes([data[0] ^ 1]) + bytes(data[1:]))
        return file


def test_wrong_bits_and_refusals_are_mended_by_trying_again(tmp_path: Path) -> None:
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    mirror = Mirror(Place.of(f"unreliable://{tmp_path}/mirror"))
    running = Mirroring(mirror, MINE, lambda records: [])
    try:
        for step in range(1, 3):
            running.offer(save(tmp_path / "here", step))
            assert running.wait(PATIENCE_S)
        assert next(Unreliable.written) > 1 + 2 * 2 + 1, "some were refused or wrong"
    finally:
        running.close()
    plain = Mirror(Place.of(tmp_path / "mirror"))
    assert names(plain) == [name_of(step) for step in range(1, 3)]
    for step in range(1, 3):
        plain.fetch(name_of(step), tmp_path / "there")
    assert len(names_in(tmp_path / "there")) == 2
    newest = Catalog(tmp_path / "there").newest_valid(pytest.fail)
    assert newest is not None
    assert_belongs_together(newest)
