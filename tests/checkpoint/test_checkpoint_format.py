"""A checkpoint comes back as it was written, or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from checkpoint_cases import assert_belongs_together, cursor_at, names_in, same_bits, save, state_at, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from shoal.checkpoint import durable
from shoal.checkpoint.format import read, write
from shoal.checkpoint.manifest import Manifest
from shoal.checkpoint.tensorfile import DTYPES
from shoal.core.cursor import Cursor
from shoal.core.errors import CheckpointError
from shoal.core.state import Piece, ShardedState

pytestmark = pytest.mark.unit


def test_every_type_comes_back_with_the_same_bits(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for dtype in DTYPES:
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (5, 3, dtype.itemsize), generator=generator)
        tensors[f"model.{dtype}"] = raw.to(torch.uint8).view(dtype).reshape(5, 3)
    path = write(tmp_path, "step-00000001", [whole(tensors)], Cursor(step=1), {})
    found = read(path).state.pieces
    assert sorted(found) == sorted(tensors)
    assert all(same_bits(found[name].tensor, tensor) for name, tensor in tensors.items())
    # what we write by ourselves is the format that others read
    others = load_file(path / "state-00000.safetensors")
    assert all(same_bits(others[name], tensor) for name, tensor in tensors.items())


def test_awkward_tensors_come_back(tmp_path: Path) -> None:
    base = torch.randn(6, 4)
    tensors = {
        "transposed": base.t(),
        "every second": base[::2, 1:3],
        "shared": base,
        "expanded": torch.tensor([1.5]).expand(7),
        "scalar": torch.tensor(3.0, dtype=torch.float64),
        "count": torch.tensor(12),
        "empty": torch.empty(0, 3),
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "not a number": torch.tensor([math.nan, math.inf, -0.0]),
        "bf16": torch.randn(3).bfloat16(),
        "odd": torch.ones(3, dtype=torch.bool),
        'ünïcode."name"': torch.ones(1),
    }
    found = read(write(tmp_path, "step-00000001", [whole(tensors)], Cursor(step=1), {})).state.pieces
    assert set(found) == set(tensors)
    assert all(same_bits(found[name].tensor, tensor) for name, tensor in tensors.items())
    assert all(piece.is_whole and not piece.tensor.requires_grad for piece in found.values())


def test_cursor_values_and_meta_come_back(tmp_path: Path) -> None:
    cursor = Cursor(epoch=3, batch=7, step=50, samples=4999)
    values = {"optimizer": {"lr": 0.1, "betas": [0.9, 0.999], "none": None, "on": True, "word": "ä"}}
    meta = {"test_loss": 1e-17, "worst": math.inf, "nothing": None, "coverage": {"once": 12}}
    checkpoint = read(write(tmp_path, "step-00000050", [ShardedState({}, values)], cursor, meta))
    assert (checkpoint.cursor, checkpoint.state.values, checkpoint.meta) == (cursor, values, meta)
    assert checkpoint.state.pieces == {}


def test_nothing_at_all_can_be_saved(tmp_path: Path) -> None:
    checkpoint = read(write(tmp_path, "step-00000000", [], Cursor(), {}))
    assert (checkpoint.cursor, checkpoint.state.pieces, checkpoint.state.values) == (Cursor(), {}, {})


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_tensor_cut_into_shards_comes_back_whole(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3), label="shape"))
    whole_tensor = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    axis = data.draw(st.integers(0, len(shape) - 1), label="axis")
    cuts = sorted(data.draw(st.lists(st.integers(0, shape[axis]), max_size=3), label="cuts"))
    edges = [0, *cuts, shape[axis]]
    shards = []
    for begin, end in pairwise(edges):
        offset = tuple(begin if dimension == axis else 0 for dimension in range(len(shape)))
        block = whole_tensor.narrow(axis, begin, end - begin)
        shards.append(ShardedState({"model.w": Piece(block, shape, offset)}, {"same": 1}))
    order = data.draw(st.permutations(shards), label="order")
    path = write(tmp_path_factory.mktemp("shards"), "step-00000001", order, Cursor(step=1), {})
    checkpoint = read(path)
    assert same_bits(checkpoint.state.pieces["model.w"].tensor, whole_tensor)
    assert checkpoint.state.values == {"same": 1}
    assert len(list(path.glob("state-*.safetensors"))) == len(shards)


@pytest.mark.parametrize(
    ("blocks", "complaint"),
    [
        ([(0, 2)], "hold 2 of 4"),
        ([(0, 2), (1, 3)], "overlap"),
        ([(0, 2), (3, 2)], "reaches out"),
        ([(0, 2), (0, 2), (2, 2)], "overlap"),
    ],
)
def test_blocks_that_make_no_whole_are_refused(tmp_path: Path, blocks: list[tuple[int, int]], complaint: str) -> None:
    shards = [ShardedState({"model.w": Piece(torch.zeros(size), (4,), (at,))}) for at, size in blocks]
    with pytest.raises(CheckpointError, match=f"model.w.*{complaint}"):
        write(tmp_path, "step-00000001", shards, Cursor(step=1), {})
    assert names_in(tmp_path) == []


def test_shards_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    halves = [Piece(torch.zeros(2), (4,), (0,)), Piece(torch.zeros(2, dtype=torch.int64), (4,), (2,))]
    with pytest.raises(CheckpointError, match=r"model\.w is .*F32.* in one shard and .*I64"):
        write(
            tmp_path,
            "step-00000001",
            [ShardedState({"model.w": half}) for half in halves],
            Cursor(step=1),
            {},
        )
    with pytest.raises(CheckpointError, match="different values for 'lr'"):
        write(tmp_path, "step-00000001", [ShardedState({}, {"lr": lr}) for lr in (1, 2)], Cursor(step=1), {})
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        (ShardedState({}, {"seen": {1: "x"}}), r"values\.seen has the key 1"),
        (ShardedState({}, {"seen": [torch.zeros(1)]}), r"values\.seen\[0\] is a Tensor"),
        (whole({"model.s": torch.eye(3).to_sparse()}), "model.s is a tensor of .*sparse"),
        (
            whole({"model.c": torch.zeros(1, dtype=torch.complex128)}),
            "model.c is a tensor of torch.complex128",
        ),
    ],
)
def test_what_cannot_be_held_is_named(tmp_path: Path, state: ShardedState, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        write(tmp_path, "step-00000001", [state], Cursor(step=1), {})
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_the_same_step_saved_again_replaces_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:  # as on a file system that cannot exchange two names
        monkeypatch.setattr(durable, "_exchange", lambda first, second: False)
    save(tmp_path, 7, test_loss=1.0)
    path = save(tmp_path, 7, test_loss=0.5)
    assert read(path).meta["test_loss"] == 0.5
    assert_belongs_together(read(path))
    assert names_in(tmp_path) == ["step-00000007"]


@pytest.mark.parametrize("call", range(5))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, code: int
) -> None:
    save(tmp_path, 3, test_loss=1.0)
    calls = iter(range(100))
    flush = os.fsync

    def failing(descriptor: int) -> None:
        if next(calls) == call:
            raise OSError(code, os.strerror(code))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    outcome = 1.0
    if call < 4:  # state, manifest, directory, parent
        with pytest.raises(OSError, match=os.strerror(code)):
            save(tmp_path, 3, test_loss=0.5)
    else:
        save(tmp_path, 3, test_loss=0.5)
    if call >= 3:
        outcome = 0.5  # it has its name; that the name is durable is what could not be confirmed
    assert names_in(tmp_path) == ["step-00000003"]
    assert read(tmp_path / "step-00000003").meta["test_loss"] == outcome


def test_a_failed_second_rename_gives_the_name_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 3, test_loss=1.0)
    monkeypatch.setattr(durable, "_exchange", lambda first, second: False)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.startswith(".tmp-step"):
            raise OSError(errno.EIO, "broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="broken"):
        save(tmp_path, 3, test_loss=0.5)
    assert names_in(tmp_path) == ["step-00000003"]
    assert read(tmp_path / "step-00000003").meta["test_loss"] == 1.0


def test_what_was_read_does_not_change_with_the_file(tmp_path: Path) -> None:
    checkpoint = read(save(tmp_path, 5))
    file = tmp_path / "step-00000005" / "state-00000.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    assert_belongs_together(checkpoint)
    checkpoint.state.pieces["model.0"].tensor.add_(1)  # and it may be written to


def test_a_manifest_of_a_later_format_is_named_as_such(tmp_path: Path) -> None:
    path = save(tmp_path, 5) / "manifest.json"
    document = json.loads(path.read_text())
    del document["checksum"]
    document["format"] = 2
    from shoal.checkpoint.manifest import _canonical, _checksum

    path.write_bytes(_canonical({**document, "checksum": _checksum(document)}))
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: it has format 2"):
        read(path.parent)


def test_a_manifest_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    manifest = Manifest.read(path)
    stray = Manifest(manifest.cursor, {}, {}, {"../x": manifest.files["state-00000.safetensors"]}, {})
    (path / "manifest.json").write_bytes(stray.encode())
    with pytest.raises(CheckpointError, match=r"names the file '\.\./x' outside"):
        read(path)


def test_sizes_in_the_manifest_are_those_on_disk(tmp_path: Path) -> None:
    path = write(tmp_path, "step-00000001", [state_at(1, elements=5)], cursor_at(1), {})
    assert Manifest.read(path).size_bytes == (path / "state-00000.safetensors").stat().st_size
