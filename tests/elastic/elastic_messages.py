"""One valid message of every kind, and ways to spoil them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from elastic_cases import agent, status, unmoved

from shoal.elastic.messages import (
    Ask,
    BadMessage,
    Message,
    Scale,
    SetJournal,
    StoreAdd,
    StoreCompareSet,
    StoreCount,
    StoreDelete,
    StoreGet,
    StoreSet,
    decode,
    encode,
)

MESSAGES: tuple[Message, ...] = (
    status("intruder", "in", 3, 1, "agent"),
    agent("intruder", "a", "b", ended={"c": "killed by signal 9"}, seen=(14, "reduce")),
    unmoved(agent("intruder", "a", seen=(14, "reduce"))),
    replace(agent("intruder", home=True), stopping=True, condemned={"b": "no progress for 4 s in forward"}),
    Scale(3),
    Ask(),
    SetJournal("/nowhere"),
    StoreSet("view-1/0", b"value"),
    StoreGet(("view-1/0", "view-1/1"), 0.5),
    StoreAdd("view-1/count", -3),
    StoreCompareSet("view-1/0", b"", b"value"),
    StoreDelete("view-1/0"),
    StoreCount("view-1/"),
)
TOKEN = b"0123456789abcdef"


def malformed(count: int, seed: int) -> Iterator[bytes]:
    """`count` messages that are none: valid ones of every kind with bytes changed, cut off or put in, and noise."""
    chance = random.Random(seed)
    valid = [encode(message, TOKEN) for message in MESSAGES]
    made = 0
    while made < count:
        data = bytearray(valid[made % len(valid)])
        way = chance.randrange(6)
        if way == 0:
            data = bytearray(chance.randbytes(chance.randrange(200)))
        elif way == 1:
            del data[chance.randrange(len(data)) :]
        elif way == 2:
            data += chance.randbytes(1 + chance.randrange(20))
        elif way == 3:
            at = chance.randrange(len(data))
            data[at:at] = chance.randbytes(1 + chance.randrange(4))
        else:
            for _ in range(1 + chance.randrange(4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decode(bytes(data))
        except BadMessage:
            made += 1
            yield bytes(data)
