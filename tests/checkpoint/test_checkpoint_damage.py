"""Every changed bit and every missing byte is noticed and named, and the checkpoint before is used."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from checkpoint_cases import assert_belongs_together, cursor_at, save, state_at

from shoal.checkpoint.catalog import Catalog
from shoal.checkpoint.format import read, write
from shoal.checkpoint.manifest import Manifest, _canonical, _checksum
from shoal.core.errors import CheckpointError

pytestmark = pytest.mark.unit

FILES = ["state-00000.safetensors", "state-00001.safetensors", "manifest.json"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two shards; the manifest has an exponent and an escape, which can be written in two ways."""
    first, second = state_at(4, tensors=2, elements=6), state_at(5, tensors=4, elements=3)
    rest = {name: piece for name, piece in second.pieces.items() if name not in first.pieces}
    shards = [first, type(first)(rest, {})]
    return write(tmp_path, "step-00000004", shards, cursor_at(4), {"test_loss": 1e-17, "word": "é"})


def test_every_bit_of_a_manifest_counts(saved: Path) -> None:
    data = (saved / "manifest.json").read_bytes()
    Manifest.decode(data)
    passed = []
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            try:
                Manifest.decode(bytes(changed))
            except ValueError:
                continue
            passed.append((position, bit))
    assert passed == []


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_noticed_and_its_file_named(saved: Path, file: str) -> None:
    path = saved / file
    data = path.read_bytes()
    draw = random.Random(file)
    positions = {0, 7, 8, len(data) - 1, *draw.sample(range(len(data)), 40)}
    for position in sorted(positions):
        changed = bytearray(data)
        changed[position] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=f"{file} is damaged"):
            read(saved)
    path.write_bytes(data)
    read(saved)


@pytest.mark.parametrize("file", FILES)
def test_a_truncated_file_is_noticed_and_named(saved: Path, file: str) -> None:
    path = saved / file
    data = path.read_bytes()
    for length in {0, 1, 8, len(data) // 2, len(data) - 1}:
        path.write_bytes(data[:length])
        what = "is damaged" if file == "manifest.json" else f"is truncated: {length} of {len(data)} bytes"
        with pytest.raises(CheckpointError, match=f"{file} {what}"):
            read(saved)
    path.write_bytes(data + b"\n")
    with pytest.raises(CheckpointError, match=f"{file} is (too long|damaged)"):
        read(saved)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(saved: Path, file: str) -> None:
    (saved / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file} is missing"):
        read(saved)


def test_a_file_that_cannot_be_read_is_named(saved: Path) -> None:
    (saved / FILES[0]).unlink()
    (saved / FILES[0]).mkdir()
    with pytest.raises(CheckpointError, match=f"{FILES[0]}"):
        read(saved)


def test_files_of_two_checkpoints_do_not_mix(tmp_path: Path) -> None:
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    shutil.copy(first / FILES[0], second / FILES[0])
    with pytest.raises(CheckpointError, match="checksum differs"):
        read(second)


def test_the_one_before_is_used(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    (tmp_path / "step-00000004" / "manifest.json").unlink()
    file = tmp_path / "step-00000003" / FILES[0]
    file.write_bytes(file.read_bytes()[:-1])
    told: list[str] = []
    checkpoint = Catalog(tmp_path).newest_valid(told.append)
    assert checkpoint is not None
    assert checkpoint.cursor.step == 2
    assert_belongs_together(checkpoint)
    assert [line.split(" is passed over")[0] for line in told] == [
        "checkpoint step-00000004",
        "checkpoint step-00000003",
    ]
    assert "manifest.json is missing" in told[0]
    assert "truncated" in told[1]
    assert all("\n" not in line for line in told)


def test_when_all_are_damaged_the_error_names_them_and_the_way_out(tmp_path: Path) -> None:
    for step in (1, 2):
        (save(tmp_path, step) / FILES[0]).unlink()
    with pytest.raises(CheckpointError) as caught:
        Catalog(tmp_path).newest_valid(lambda line: None)
    message = str(caught.value)
    assert "step-00000001" in message
    assert "step-00000002" in message
    assert "--run-dir" in message


@pytest.mark.parametrize(
    ("cursor", "said"),
    [
        ({"epoch": -1}, "is no position in a run"),
        ({"samples": "many"}, "is no position in a run"),
        ({"step": True}, "is no position in a run"),
        ({"step": 1 << 60}, "which is not its name"),
    ],
)
def test_a_cursor_that_makes_no_sense_is_passed_over_though_its_checksum_is_right(
    tmp_path: Path, cursor: dict[str, object], said: str
) -> None:
    save(tmp_path, 3)
    path = save(tmp_path, 6) / "manifest.json"
    document = json.loads(path.read_bytes())
    document.pop("checksum")
    document["cursor"].update(cursor)
    path.write_bytes(_canonical({**document, "checksum": _checksum(document)}))
    told: list[str] = []
    found = Catalog(tmp_path).newest_valid(told.append)
    assert found is not None
    assert found.cursor.step == 3
    assert len(told) == 1
    assert said in told[0]
