"""Operations and answers as plain data, shards as snapshots: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from typing import Any

import msgpack
import numpy as np
import pytest
from store_cases import Client, W, ones, rows
from store_messages import TICKET, VALUES, spoiled

from shoal.core.errors import ShoalError
from shoal.store import answers
from shoal.store import operations as ops
from shoal.store.packing import PackingError, pack, unpack
from shoal.store.shard import Shard

pytestmark = pytest.mark.unit


def plain(value: Any) -> Any:
    """With arrays as lists, so that it can be compared."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return (type(value).__name__, fields)
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_what_is_packed_is_unpacked(value: Any, wire: str) -> None:
    data, arrays = pack(value)
    sent = json.loads(json.dumps(data)) if wire == "json" else msgpack.unpackb(msgpack.packb(data))
    assert plain(unpack(sent, [array.copy() for array in arrays])) == plain(value)


def test_every_operation_and_answer_was_tried() -> None:
    tried = {type(value) for value in VALUES}
    for module in (ops, answers):
        kinds = {
            kind
            for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, ops.Operation | answers.Answer)
        }
        assert kinds - tried <= {ops.Operation, ops.Change, answers.Answer}


def test_arrays_are_not_copied() -> None:
    update = ones()
    _, arrays = pack(ops.Set((update,), **TICKET))
    assert arrays[0] is update.values


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "Popen", "args": ["ls"]},
        {"kind": "Shard"},
        {"kind": "Lease"},
        {"kind": "Lease", "worker": "a", "client": "b", "sequence": 1, "more": 2},
        {"kind": ["Lease"]},
        {"array": 0},
        {"map": 3},
        {},
        b"bytes",
        {"kind": "DenseKey", "name": "a", "shape": [1], "dtype": "object"},
        {"kind": "DenseKey", "name": "a", "shape": [1.5], "dtype": "float32"},
        {"kind": "Lease", "worker": "a", "client": "b", "sequence": "1"},
        {"kind": "Wait", "version": 1, "cause": "boredom", "workers": ["a"]},
        {"kind": "Wanted", "where": "a", "span": [1, 2, 3]},
        {"kind": "Push", "updates": [{"kind": "Task", "stretch": 1, "number": 2, "worker": "a"}]},
    ],
)
def test_nothing_else_gets_in(data: Any) -> None:
    with pytest.raises(PackingError):
        unpack(data, [])


@pytest.mark.parametrize(
    "operation", [one for one in VALUES if isinstance(one, ops.Operation)], ids=lambda value: type(value).__name__
)
def test_whatever_arrives_is_answered_or_cannot_be_read(operation: ops.Operation) -> None:
    chance = random.Random(1)
    data, arrays = pack(operation)
    odd = [np.ones((2, 2)), np.array([1, 2]), np.array(["a"]), np.empty(0), np.ones(6, np.complex128)]
    client = Client()
    client.declare("sgd", momentum=0.5)
    client.stage("s", 0, ones())
    client.stage("s", 3, ones(), rows(4))
    meta, held = client.shard.dump()
    read = 0
    for _ in range(60):
        some = [chance.choice([array, *odd]) for array in arrays] or odd[:1]
        try:
            changed = unpack(spoiled(data, chance), some)
        except PackingError:
            continue
        if isinstance(changed, ops.Operation):
            read += 1
            assert isinstance(Shard.load(meta, held).do(changed), answers.Answer)
    assert read or not data.keys() - {"kind"}, "nothing of it got as far as the shard"


def test_nothing_else_gets_out() -> None:
    for value in (object(), ops.Set((ops.Update(W, object()),), **TICKET), np.float32(1)):  # type: ignore[arg-type]
        with pytest.raises(PackingError):
            pack(value)


def test_a_shard_comes_back_with_all_that_it_had() -> None:
    client = Client()
    client.declare("adam")
    client.push(ones(), rows(4, 9))
    client.stage("s", 0, ones(3.0), rows(5, 5, 4))
    client.commit("s", 0, record=b"\x00\xff", read_version=0)
    client.stage("t", 1, ones(), rows(7))
    client.stage("t", 0)
    client.done(ops.Open, 4, 3, "ssp:1", ("a",))
    repeated = ops.Lease("a", **client.ticket())
    client.shard.do(repeated)
    meta, arrays = client.shard.dump()
    again = Shard.load(msgpack.unpackb(msgpack.packb(meta)), arrays)
    assert again.digest() == client.shard.digest()
    assert again.do(repeated) == client.shard.do(repeated)
    for shard in (client.shard, again):
        other = Client(shard, "other")
        other.commit("t", 1, 0, task=ops.Task(4, 0, "a"), read_version=1)
        other.push(ones(), rows(4))
    assert again.digest() == client.shard.digest()


def test_a_dump_is_not_changed_by_what_comes_after() -> None:
    client = Client()
    client.declare()
    meta, arrays = client.shard.dump()
    before, loaded = client.shard.digest(), Shard.load(meta, arrays)
    client.push(ones())
    assert Shard.load(meta, arrays).digest() == before
    Client(loaded, "other").push(ones())
    assert Shard.load(meta, arrays).digest() == before


def test_differences_are_seen_by_the_digest() -> None:
    digests = set()
    for updater, value, twice in (("add", 1.0, False), ("add", 2.0, False), ("sgd", 1.0, False), ("add", 0.5, True)):
        client = Client()
        client.declare(updater)
        for _ in range(1 + twice):
            client.push(ones(value))
        digests.add(client.shard.digest())
    assert len(digests) == 4


def test_a_snapshot_of_another_format_is_named() -> None:
    meta, arrays = Shard().dump()
    with pytest.raises(ShoalError, match="format 99"):
        Shard.load({**meta, "format": 99}, arrays)


def test_the_store_does_not_need_pytorch() -> None:
    """As a client that only moves arrays: it should not wait for what it does not use."""
    code = (
        "import sys; sys.argv = ['-m']\n"
        "import shoal.store, shoal.store.shard, shoal.store.placement, shoal.store.packing, shoal.core.consistency\n"
        "import shoal; shoal.KVStore.push\n"
        "sys.exit('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=120, check=False)
    assert ended.returncode == 0
