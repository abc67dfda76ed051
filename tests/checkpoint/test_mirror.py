"""A second place for checkpoints: on a path and on a real S3 server, what is there is whole or is no checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_cases import assert_belongs_together, names_in, save

from shoal.checkpoint.catalog import Catalog, name_of
from shoal.checkpoint.manifest import MANIFEST
from shoal.checkpoint.mirror import Held, Mirror, MirrorError, Owner
from shoal.checkpoint.retention import to_remove
from shoal.core.errors import CheckpointError
from shoal.core.places import AccessError, Place

MINE = Owner("a", {"seed": 1})


@pytest.fixture(params=["path", "s3", "hdfs"])
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> Mirror:
    where = tmp_path if request.param == "path" else request.getfixturevalue(request.param)
    return Mirror(Place.of(f"{where}/mirror"))


def put(mirror: Mirror, path: Path, moved: Callable[[int], None] = lambda count: None) -> None:
    held = Held(path)
    try:
        mirror.put(held, moved)
    finally:
        held.close()


def names(mirror: Mirror) -> list[str]:
    return [entry.name for entry in mirror.entries()]


def test_a_checkpoint_comes_back_from_the_mirror_with_every_bit(mirror: Mirror, tmp_path: Path) -> None:
    assert names(mirror) == []
    source = save(tmp_path / "here", 5)
    put(mirror, source)
    assert names(mirror) == [name_of(5)]
    fetched = mirror.fetch(name_of(5), tmp_path / "there")
    for path in source.iterdir():
        assert (fetched / path.name).read_bytes() == path.read_bytes()
    newest = Catalog(tmp_path / "there").newest_valid(pytest.fail)
    assert newest is not None
    assert_belongs_together(newest)


def test_a_copy_that_is_broken_off_anywhere_is_no_checkpoint_and_can_be_completed(
    mirror: Mirror, tmp_path: Path
) -> None:
    source = save(tmp_path / "here", 5)
    broken_off = 0
    held = Held(source)
    for most in range(3):

        def moved(count: int, left: list[int] = [most]) -> None:  # noqa: B006 - counts the calls of this attempt
            if left[0] == 0:
                raise OSError("the line is cut")
            left[0] -= 1

        try:
            mirror.put(held, moved)
        except OSError:
            broken_off += 1
            assert names(mirror) == []
    held.close()
    assert broken_off == 2
    assert names(mirror) == [name_of(5)]
    mirror.fetch(name_of(5), tmp_path / "there")


def test_a_checkpoint_that_is_removed_here_meanwhile_is_still_copied(mirror: Mirror, tmp_path: Path) -> None:
    source = save(tmp_path / "here", 5)
    held = Held(source)
    shutil.rmtree(source)
    mirror.put(held, lambda count: None)
    held.close()
    mirror.fetch(name_of(5), tmp_path / "there")


def test_what_is_damaged_here_is_not_copied(mirror: Mirror, tmp_path: Path) -> None:
    source = save(tmp_path / "here", 5)
    damaged = next(path for path in source.iterdir() if path.name != MANIFEST)
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{damaged.name} is damaged: its checksum differs"):
        put(mirror, source)
    assert names(mirror) == []


@pytest.mark.parametrize("how", ["a bit", "cut short", "missing"])
def test_what_is_damaged_there_is_named_and_leaves_nothing_here(mirror: Mirror, tmp_path: Path, how: str) -> None:
    source = save(tmp_path / "here", 5)
    put(mirror, source)
    inner = next(path.name for path in source.iterdir() if path.name != MANIFEST)
    at = mirror.place / name_of(5) / inner
    data = bytearray(at.read())
    data[-1] ^= 1
    words = {"a bit": "its checksum differs", "cut short": "bytes, not", "missing": "is missing"}[how]
    if how == "missing":
        at.remove()
    else:
        at.write(bytes(data) if how == "a bit" else bytes(data[:-1]))
    with pytest.raises(CheckpointError, match=words) as caught:
        mirror.fetch(name_of(5), tmp_path / "there")
    assert str(at) in str(caught.value)
    assert names_in(tmp_path / "there") == []


def test_only_what_need_not_be_kept_is_removed(mirror: Mirror, tmp_path: Path) -> None:
    for step, loss in ((1, 0.5), (2, 0.1), (3, 0.4), (4, 0.3)):
        put(mirror, save(tmp_path / "here", step, test_loss=loss))
    (mirror.place / name_of(2) / "stray").write(b"x")
    (mirror.place / "step-00000003" / MANIFEST).remove()  # broken off
    put(mirror, save(tmp_path / "here", 9, test_loss=0.2))
    again = Mirror(mirror.place)  # which has not seen them being copied
    again.tidy(lambda records: to_remove(records, 1, 1, "test_loss", "min"), 4)
    assert names(mirror) == [name_of(2), name_of(4), name_of(9)], "the best, the newest at step 4, and what is beyond"
    left = {entry.place.url.split("/")[-2] for entry in mirror.place.files()}
    assert left == {name_of(2), name_of(4), name_of(9)}


def test_a_mirror_belongs_to_one_run(mirror: Mirror) -> None:
    assert mirror.owner() is None
    mirror.claim(MINE)
    mirror.claim(MINE)
    assert mirror.owner() == MINE
    with pytest.raises(MirrorError, match="is the mirror of another run: choose another --mirror"):
        mirror.claim(Owner("b", {"seed": 1}))
    (mirror.place / "run.json").write(json.dumps({"format": 2, "id": "a", "saved": {}}).encode())
    with pytest.raises(MirrorError, match="it has format 2"):
        mirror.owner()


def test_a_folder_of_other_files_is_no_mirror(mirror: Mirror) -> None:
    (mirror.place / "photos" / "sea.jpg").write(b"x")
    with pytest.raises(MirrorError, match=r"holds files, but is no mirror of a run \(run.json is missing\)"):
        mirror.owner()


def test_wrong_credentials_are_told(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessError, match="check the permissions or credentials"):
        Mirror(Place.of(s3)).owner()


def test_a_name_that_leads_out_of_the_checkpoint_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    source = save(tmp_path / "here", 5)
    put(mirror, source)
    at = mirror.place / name_of(5) / MANIFEST
    inner = next(path.name for path in source.iterdir() if path.name != MANIFEST)
    at.write(at.read().replace(inner.encode(), b"../" + inner.encode()))
    with pytest.raises(CheckpointError, match="damaged"):
        mirror.fetch(name_of(5), tmp_path / "there")
