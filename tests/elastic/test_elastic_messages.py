"""What may come over the wire, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgpack
import pytest
from elastic_messages import MESSAGES, TOKEN, malformed
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.world import Member, View
from shoal.elastic.messages import BadMessage, Message, Refused, decode, decode_reply, encode, encode_reply
from shoal.elastic.status import AgentStatus, AgentWord, Loss, Still, WorkerNote, WorkerWord

pytestmark = pytest.mark.unit
VIEW = View(7, (Member("worker", 0, "host", 12, "key", "agent", 3, "10.0.0.1"), Member("worker", 1, "other", 13, "k")))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back(message: Message) -> None:
    assert decode(encode(message, TOKEN)) == (message, TOKEN)


@pytest.mark.parametrize(
    "reply",
    [
        WorkerWord(),
        WorkerWord(VIEW, 3, 7, 1, True, "frozen", ("worker 1 on other",)),
        AgentWord(),
        AgentWord({"key": "frozen"}, 3, VIEW, True, {"key": Loss("killed", 14, "reduce"), "other": Loss("silent")}),
        AgentWord(stopping=True, still={"key": Still(4.2, True, 14, "reduce")}),
        Refused("the store is full"),
        {"view": None, "workers": [{"rank": 1}]},
        [b"value", None],
        None,
        True,
    ],
)
def test_every_reply_comes_back(reply: object) -> None:
    assert decode_reply(encode_reply(reply, TOKEN)) == (reply, TOKEN)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_each_field_is_needed_and_no_other_is_taken(message: Message) -> None:
    kind, token, body = msgpack.unpackb(encode(message, TOKEN))
    for name in body:
        _refused([kind, token, {key: value for key, value in body.items() if key != name}])
    _refused([kind, token, {**body, "more": 1}])
    _refused([kind, token, list(body.values())])
    _refused([kind, token])
    _refused([kind, token, body, body])
    _refused([kind, b"x" * 17, body])
    _refused([kind, "text", body])
    _refused(["unknown", token, body])
    _refused([b"worker", token, body])
    _refused([["worker"], token, body])


_WRONG: tuple[Any, ...] = (
    None, True, -1, 1 << 60, 1.5, math.nan, "x" * 5000, "line\nbreak", b"\xff" * 70000, [], [[]], {}, {"a": 1},
)  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_wrong_value_never_becomes_one_of_another_type(message: Message) -> None:
    kind, token, body = msgpack.unpackb(encode(message, TOKEN))
    for name in body:
        for wrong in _WRONG:
            try:
                taken, _ = decode(msgpack.packb([kind, token, {**body, name: wrong}]))
            except BadMessage:
                continue
            before = getattr(message, name)
            assert type(getattr(taken, name)) is type(before)
            assert getattr(taken, name) == (tuple(wrong) if isinstance(before, tuple) else wrong)


def test_what_an_agent_says_of_a_worker_is_checked_too() -> None:
    for name, wrong in (("phase", "dancing"), ("phase", 3), ("step", -1), ("step", 1 << 60), ("step", True)):
        note = dataclasses.replace(WorkerNote(1, step=14, phase="reduce"), **{name: wrong})
        with pytest.raises(BadMessage):
            decode(encode(AgentStatus("a", "host", False, 1, {"k": note}), TOKEN))
    for seconds, phase in ((math.nan, "reduce"), (-1.0, "reduce"), (1.0, "dancing")):
        still = Still(seconds, True, 14, phase)
        with pytest.raises(BadMessage):
            decode(encode(AgentStatus("a", "host", False, 1, {"k": WorkerNote(1, still=still)}), TOKEN))


def test_sizes_are_bounded() -> None:
    for kind, body in (
        ("get", {"keys": ["view-1/x"] * 2000, "wait_s": 0.0}),
        ("get", {"keys": ["view-1/x"], "wait_s": 1e9}),
        ("get", {"keys": ["view-1/x"], "wait_s": math.nan}),
        ("set", {"key": "x" * 1000, "value": b""}),
        ("set", {"key": "", "value": b""}),
        ("scale", {"workers": 0}),
        ("scale", {"workers": 10**9}),
    ):
        _refused([kind, TOKEN, body])
    with pytest.raises(BadMessage):
        decode(b"\x00" * (2 << 20))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 100_000,
     b"\xc7\x0c\xff" + b"\0" * 12, b"\xd4\x01\x01", b"\x93\xc4", b"\x81\x81\x01\x02\x03"],
)  # fmt: skip
def test_malice_in_msgpack_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)
    with pytest.raises(BadMessage):
        decode_reply(data)


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_noise_is_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)


def test_spoilt_messages_of_every_kind_are_refused() -> None:
    assert sum(1 for _ in malformed(3000, seed=1)) == 3000


def test_an_account_of_many_lines_is_sent_as_one() -> None:
    status = AgentStatus("a", "host", False, 1, {"k": WorkerNote(1, ended=True, cause="Trace\nback\x00" + "x" * 5000)})
    taken, _ = decode(encode(status, TOKEN))
    assert isinstance(taken, AgentStatus)
    assert taken.workers["k"].cause.startswith("Trace back xx")
    assert dataclasses.replace(taken.workers["k"], cause="") == dataclasses.replace(status.workers["k"], cause="")


def _refused(whole: list[Any]) -> None:
    with pytest.raises(BadMessage):
        decode(msgpack.packb(whole))
