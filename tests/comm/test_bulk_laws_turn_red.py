"""The transport's own code broken on purpose: what guards it must notice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from bulk_cases import Wire, flipped, same

from shoal.comm.bulk import Message
from shoal.comm.bulk.seal import CHUNK_BYTES, MacSeal, _Numbered

pytestmark = pytest.mark.mutation

Mutation = Callable[[pytest.MonkeyPatch], None]


def _tags_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MacSeal, "check", staticmethod(lambda tag, came: None))


def _pieces_are_not_numbered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Numbered, "_nonce", lambda self: bytes(12))


def _only_the_first_bytes_count(patch: pytest.MonkeyPatch) -> None:
    real = MacSeal.tag
    patch.setattr(MacSeal, "tag", lambda self, piece: real(self, bytes(piece[:1000])))


def _both_directions_have_one_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shoal.comm.bulk.seal.direction_key", lambda key, direction: key)


def check_changes() -> None:
    wire = Wire([Message({"n": 0}, [np.arange(CHUNK_BYTES, dtype=np.uint8)])], encrypted=False)
    for position in (40, CHUNK_BYTES // 2, len(wire.frames[0]) - 1):
        assert wire.deliver(flipped(wire.frames[0], position))[0] == []


def check_order() -> None:
    for encrypted in (False, True):
        wire = Wire([Message({"n": n}) for n in range(2)], encrypted)
        assert len(wire.deliver(wire.frames[0] * 2)[0]) == 1
        assert wire.deliver(wire.frames[1])[0] == []


def check_directions() -> None:
    wire = Wire([Message({})], encrypted=False)
    assert wire.deliver(wire.frames[0], direction="server to client")[0] == []


CHECKS = {
    _tags_are_not_compared: check_changes,
    _only_the_first_bytes_count: check_changes,
    _pieces_are_not_numbered: check_order,
    _both_directions_have_one_key: check_directions,
}


@pytest.mark.parametrize("mutation", CHECKS, ids=lambda one: one.__name__.strip("_"))
def test_the_check_turns_red(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    CHECKS[mutation]()
    mutation(monkeypatch)
    message = Message({"n": 1}, [np.arange(10)])
    wire = Wire([message], encrypted=False)
    assert same(wire.deliver(wire.frames[0])[0][0], message), "a mutation leaves the honest case alone"
    with pytest.raises(AssertionError):
        CHECKS[mutation]()
