"""A member gone mad: malformed messages of every kind at the port of a server, from one that holds the key."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvstore_fleets import CALM_S, PATIENCE_S, eventually, real_fleet
from store_cases import DENSE
from store_messages import VALUES, spoiled

from shoal.comm.bulk import BulkClient, Message, RequestFailed
from shoal.comm.bulk.envelope import pack_head
from shoal.comm.bulk.errors import BadMessage
from shoal.core.errors import ConfigError
from shoal.store.directory import Declaration
from shoal.store.heads import check_head
from shoal.store.kvstore import KVStore
from shoal.store.operations import Operation
from shoal.store.packing import PackingError
from shoal.store.state import Call, State, pack_command, unpack_command
from shoal.store.succession import Assignment

pytestmark = pytest.mark.ranks

_WARM_UP, _COUNT, _AT_ONCE = 500, 5000, 250
_GROWTH_BYTES = 20 << 20
_CALLS = (
    Call("register", {"placement": "auto", "batch": [Declaration(DENSE).to_plain()]}),
    Call("directory"),
    Call("enrol", {"consistency": "ssp:3", "workers": ["a", "b"]}),
    Call("tick", {"worker": "a", "clock": 3}),
    Call("begin", {"worker": "a"}),
    Call("leave", {"worker": "a"}),
    Call("rounds"),
)
_FROM = {"p": 0, "t": 1 << 50, "g": 1 << 50, "n": 7}  # as from a primary that comes after this one


def valid() -> list[tuple[dict[str, Any], list[Any]]]:
    """A message of every kind, with every operation and every call."""
    commands = [pack_command(one) for one in (*(one for one in VALUES if isinstance(one, Operation)), *_CALLS)]
    heads: list[dict[str, Any]] = [
        {"k": "who"},
        {"k": "snapshot"},
        {"k": "meet", "worker": 1, "address": "127.0.0.1:1"},
        {"k": "beat", "assignment": Assignment(9, 99, 9, "x", "y").to_plain(), "addresses": {"y": "z"}, "fleet": {}},
        {"k": "hold", "seconds": 60.0},
        {"k": "cut", "number": 3, "directory": "/nowhere"},
        {"k": "go on", "ticket": 1},
        {"k": "load", **_FROM, "piece": 0, "last": True, "what": [["a", 0]]},
        {"k": "renew", **_FROM},
        {"k": "end", **_FROM},
    ]
    return [
        *((head, []) for head in heads),
        *(
            ({"k": "ask", "p": 0, "g": None, "wait_s": 1.0, "left_s": 1.0, **fields}, arrays)
            for fields, arrays in commands
        ),
        *(({"k": "copy", **_FROM, **fields}, arrays) for fields, arrays in commands),
    ]


def readable(message: Message) -> bool:
    """Whether a server would take it for what it says: then it is no business of this test."""
    head, arrays = message.head, list(message.arrays)
    try:
        kind = check_head(head)
        if kind == "beat":
            Assignment.from_plain(head["assignment"])
        command = unpack_command(head, arrays) if kind in ("ask", "copy") else None
        if isinstance(command, Call) and kind == "ask":
            State().do(command)
    except (PackingError, ConfigError):
        return False
    return True


def malformed(count: int, seed: int) -> Iterator[Message]:
    """`count` messages of all kinds that have something in them that does not belong there, or lack something."""
    chance, made = random.Random(seed), 0
    for head, arrays in cycle(valid()):
        if made == count:
            return
        changed = dict(head)
        if len(head) == 1:
            changed["k"] = spoiled(head["k"], chance)
        elif chance.random() < 0.2:
            del changed[chance.choice(list(changed))]
        else:
            name = chance.choice([name for name in changed if name != "k"])
            changed[name] = spoiled(changed[name], chance)
        message = Message(changed, arrays[: chance.choice((0, 1, 9))])
        try:
            pack_head(changed)
        except BadMessage:  # no client could send it
            continue
        if not readable(message):
            made += 1
            yield message


def test_every_kind_of_message_is_spoiled_and_none_of_them_is_readable_by_chance() -> None:
    assert all(readable(Message(head, arrays)) for head, arrays in valid())
    kinds = {message.head.get("k") for message in malformed(3000, seed=3) if isinstance(message.head.get("k"), str)}
    assert kinds >= {"ask", "copy", "meet", "beat", "hold", "cut", "go on", "load", "renew", "end"}


def refuse_all(client: BulkClient, count: int, seed: int) -> None:
    """Each message is answered, with a no."""
    messages = malformed(count, seed)
    while waiting := [client.submit(one) for _, one in zip(range(_AT_ONCE), messages, strict=False)]:
        for one in waiting:
            error = one.exception(PATIENCE_S)
            assert isinstance(error, RequestFailed), error
            assert error.kind in ("PackingError", "ConfigError", "NotPrimary", "OldTerm", "WentBack"), error


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_malformed_messages_of_every_kind_change_nothing(tmp_path: Path) -> None:
    with real_fleet(tmp_path, servers=1, replicas=2, lease_s=CALM_S) as fleet:
        eventually(fleet.backed_up, "a copy")
        with KVStore(tmp_path, deadline_s=PATIENCE_S) as store:
            store.declare("w", (64,), "float64", updater="add")
            store.push("w", np.ones(64))
            before = fleet.who()
            description, keys = fleet.description()
            for number, address in enumerate(description.servers[0]):  # the one that holds it, and its copy
                client = BulkClient(address, keys, deadline_s=PATIENCE_S)
                try:
                    refuse_all(client, _WARM_UP, 2 * number)
                    used = resident_bytes(before[0][number]["pid"])
                    refuse_all(client, _COUNT, 2 * number + 1)
                    assert resident_bytes(before[0][number]["pid"]) - used < _GROWTH_BYTES
                finally:
                    client.close()
            assert fleet.who() == before
            store.push("w", np.ones(64))  # which its copy has to acknowledge
            assert np.array_equal(store.pull("w"), np.full(64, 2.0))
