"""Files that arrive while a run trains on them: each is complete when it is taken, and is taken once."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.core.arrivals import NOTHING, Arrived, Instalment, settled
from shoal.core.errors import ConfigError, UserError
from shoal.core.places import Place
from shoal.data.following import FollowingSource, Watch
from shoal.data.source import Source
from shoal.data.tensors import TensorSource

pytestmark = pytest.mark.unit

# a folder as it is found, look by look: what has been written to each file so far
LOOKS = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6), max_size=12)


def listing(sizes: dict[str, int]) -> list[Arrived]:
    return [Arrived(name, nbytes) for name, nbytes in sizes.items()]


@given(LOOKS)
def test_every_file_is_taken_once_and_never_before_it_has_settled(looks: list[dict[str, int]]) -> None:
    last, before = NOTHING, dict[str, int]()
    taken: list[str] = []
    epoch = 0
    for now in looks:
        found = last.next(epoch, settled(listing(before), listing(now)), ended=False)
        if found is not None:
            assert found.files, "an epoch has files, or is the end"
            assert not found.over
            for file in found.files:
                assert before[file.name] == now[file.name] == file.nbytes
            taken += [file.name for file in found.files]
            last, epoch = found, epoch + 1
        before = now
    assert len(set(taken)) == len(taken)
    end = last.next(epoch, listing(before), ended=True)
    assert end is not None
    assert end.over == (set(before) <= set(taken))
    assert end.known == {*taken, *before}


@given(st.integers(0, 5), LOOKS)
def test_an_instalment_is_the_same_after_being_written_down(epoch: int, looks: list[dict[str, int]]) -> None:
    instalment = Instalment(epoch, tuple(listing(looks[0])) if looks else (), frozenset("xyz"), over=not looks)
    assert Instalment.from_json(instalment.to_json()) == instalment
    assert instalment.closed().known == instalment.known
    assert not instalment.closed().files


def following(folder: Path, follow_s: float = 60.0) -> FollowingSource:
    def open_files(places: Sequence[Place]) -> Source:
        return TensorSource(np.concatenate([np.load(place.path) for place in places]), "train")

    return FollowingSource(Place.of(folder), open_files, follow_s)


def put(path: Path, rows: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    np.save(draft.with_suffix(".npy"), np.arange(rows, dtype=np.float32))
    draft.with_suffix(".npy").replace(path)


def names(instalment: Instalment | None) -> list[str]:
    assert instalment is not None
    return [file.name for file in instalment.files]


def test_a_file_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    watch = Watch(following(tmp_path))
    put(tmp_path / "a.npy")
    growing = tmp_path / "b.npy"
    growing.write_bytes(b"one")
    assert watch.look(NOTHING, 0) is None, "nothing has been seen twice"
    with growing.open("ab") as file:
        file.write(b"two")
    first = watch.look(NOTHING, 0)
    assert first is not None
    assert names(first) == ["a.npy"]
    assert names(watch.look(first, 1)) == ["b.npy"]


def test_a_file_that_is_written_over_with_as_many_bytes_has_changed(tmp_path: Path) -> None:
    watch = Watch(following(tmp_path))
    path = tmp_path / "a.npy"
    path.write_bytes(b"one")
    assert watch.look(NOTHING, 0) is None
    path.write_bytes(b"two")
    os.utime(path, (1, 1))
    assert watch.look(NOTHING, 0) is None
    assert names(watch.look(NOTHING, 0)) == ["a.npy"]


def test_names_with_a_dot_or_an_underscore_are_left_out(tmp_path: Path) -> None:
    watch = Watch(following(tmp_path))
    for name in (".a.npy", "_b.npy", "c.npy", "deep/d.npy", "_tmp/e.npy"):
        put(tmp_path / name)
    watch.look(NOTHING, 0)
    assert names(watch.look(NOTHING, 0)) == ["c.npy", "deep/d.npy"]


@pytest.mark.parametrize("name", ["_END", "_SUCCESS"])
def test_the_end_is_told_by_a_file_and_takes_all_that_is_there(tmp_path: Path, name: str) -> None:
    watch = Watch(following(tmp_path))
    put(tmp_path / "a.npy")
    (tmp_path / name).touch()
    last = watch.look(NOTHING, 0)
    assert last is not None
    assert names(last) == ["a.npy"]
    assert not last.over
    end = watch.look(last, 1)
    assert end is not None
    assert end.over


def test_it_ends_when_nothing_has_come_for_long_enough(tmp_path: Path) -> None:
    watch = Watch(following(tmp_path / "not there yet", follow_s=0.05))
    began = time.monotonic()
    looks = iter(lambda: watch.look(NOTHING, 0), watch)
    end = next(look for look in looks if look is not None or time.monotonic() > began + 30)
    assert end is not None
    assert end.over
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_files_come_to_a_prefix_on_a_real_service(request: pytest.FixtureRequest, kind: str) -> None:
    where = Place.of(f"{request.getfixturevalue(kind)}/inbox")
    source = FollowingSource(where, lambda places: TensorSource(np.zeros((len(places), 2)), "train"))
    watch = Watch(source)
    assert watch.look(NOTHING, 0) is None, "whoever writes there has not begun"
    (where / "a.npy").write(b"one")
    (where / ".b.npy").write(b"two")
    found = watch.look(NOTHING, 0)
    if kind == "hdfs":
        assert found is None, "it may be being written"
        found = watch.look(NOTHING, 0)
    assert found is not None
    assert names(found) == ["a.npy"]
    source.take(found)
    assert len(source) == 1
    (where / "deep/c.npy").write(b"three")
    (where / "_END").write(b"")
    last = watch.look(found, 1)
    assert names(last) == ["deep/c.npy"]
    assert last is not None
    end = watch.look(last, 2)
    assert end is not None
    assert end.over


def test_its_samples_are_those_of_the_instalment(tmp_path: Path) -> None:
    source = following(tmp_path)
    assert len(source) == 0
    put(tmp_path / "a.npy", 2)
    put(tmp_path / "b.npy", 3)
    watch = Watch(source)
    watch.look(NOTHING, 0)
    found = watch.look(NOTHING, 0)
    assert found is not None
    assert source.count(found) == 5
    assert len(source) == 0, "it is not taken yet"
    source.take(found)
    assert len(source) == 5
    assert source.fetch(np.array([1, 4]), 0, 0).tolist() == [1.0, 2.0]
    assert sorted(source.order(0, True).at(0, 0, 5).tolist()) == [0, 1, 2, 3, 4]


def test_a_file_that_has_changed_or_gone_since_is_named(tmp_path: Path) -> None:
    source = following(tmp_path)
    path = tmp_path / "a.npy"
    put(path, 2)
    with pytest.raises(UserError, match=r"a.npy has changed since it arrived \(7 bytes then, 136 now\)"):
        source.take(Instalment(0, (Arrived("a.npy", 7),)))
    path.unlink()
    with pytest.raises(UserError, match=r"a.npy has gone while an epoch is to be trained on it"):
        source.take(Instalment(0, (Arrived("a.npy", 136),)))


def test_a_folder_to_which_nothing_comes_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file has come to .* \(waited \d+ s\): check the path, or raise follow_s"):
        following(tmp_path / "wrong", follow_s=0.01).sampled()


def test_a_file_without_samples_is_no_error(tmp_path: Path) -> None:
    source = shoal.data.follow(tmp_path, lambda paths: np.concatenate([np.load(path) for path in paths]))
    put(tmp_path / "a.npy", 0)
    size = (tmp_path / "a.npy").stat().st_size
    assert source.count(Instalment(0, (Arrived("a.npy", size),))) == 0


def test_no_patience_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="follow_s=0"):
        shoal.data.follow(tmp_path, lambda paths: np.zeros(1), follow_s=0)


def test_the_one_door_to_data_follows_too(tmp_path: Path) -> None:
    source = shoal.data.open(tmp_path, follow=True, columns=["x", "y"], follow_s=5)
    assert isinstance(source, FollowingSource)
    for name, first in (("a.csv", 1), ("b.csv", 7)):
        (tmp_path / name).write_text(f"x,y\n{first},0.5\n{first + 1},1.5\n")
    watch = Watch(source)
    watch.look(NOTHING, 0)
    found = watch.look(NOTHING, 0)
    assert found is not None
    source.take(found)
    numbers, fractions = source.fetch(np.arange(4), 0, 0)
    assert numbers.tolist() == [1, 2, 7, 8]
    assert fractions.tolist() == [0.5, 1.5, 0.5, 1.5]
    with pytest.raises(ConfigError, match="follow=True is for a folder or prefix that receives files"):
        shoal.data.open(np.zeros(3), follow=True)
    (tmp_path / "empty.csv").touch()
    assert source.count(Instalment(1, (Arrived("empty.csv", 0),))) == 0
    (tmp_path / "c.png").write_bytes(b"x")
    watch.look(found, 1)
    image = watch.look(found, 1)
    assert image is not None
    with pytest.raises(ConfigError, match=r"c.png is an image: the class of an image that arrives alone is not known"):
        source.take(image)
