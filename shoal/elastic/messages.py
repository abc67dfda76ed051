"""Messages between members and the coordinator, and how they look on the wire: msgpack, checked field by field.

What goes to the coordinator is a *call*: ``[kind, token, body]``. The answer carries the same token. Whatever does not
follow the form to the letter is a `BadMessage` and has no effect; every size is bounded, and nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgpack

from shoal.core.phases import PHASES, UNKNOWN
from shoal.core.world import Member, View
from shoal.elastic import fields
from shoal.elastic.fields import BadMessage, array, choice, flag, mapping, number, octets, record, text
from shoal.elastic.status import AgentStatus, AgentWord, Loss, Still, WorkerNote, WorkerStatus, WorkerWord

__all__ = ["MAX_FRAME_BYTES", "BadMessage", "Message", "decode", "decode_reply", "encode", "encode_reply"]

MAX_FRAME_BYTES = 1 << 20
TOKEN_BYTES = 16
MOST_STORE_KEYS = 1024
_LINE_CHARACTERS = 1000
_STATES = ("door", "in", "left", "broken", "going", "gone", "finished")


@dataclass(frozen=True)
class Scale:
    """The run should have so many workers in all. Answered by what `Ask` answers."""

    workers: int


@dataclass(frozen=True)
class Ask:
    """How does the run stand? Answered by a mapping of plain values: see `Membership.report`."""


@dataclass(frozen=True)
class SetJournal:
    """The run directory is known now: keep the journal there. Takes effect once. Answered by whether it did."""

    directory: str


@dataclass(frozen=True)
class StoreSet:
    """Answered by None."""

    key: str
    value: bytes


@dataclass(frozen=True)
class StoreGet:
    """Answered by the values, as soon as all are there, or after `wait_s` with None for those that are not."""

    keys: tuple[str, ...]
    wait_s: float = 0.0


@dataclass(frozen=True)
class StoreAdd:
    """Add to a number, which begins at 0. Answered by the sum."""

    key: str
    amount: int


@dataclass(frozen=True)
class StoreCompareSet:
    """Set `value` if the value is `expected`, or none and `expected` is empty. Answered by what is there then."""

    key: str
    expected: bytes
    value: bytes


@dataclass(frozen=True)
class StoreDelete:
    """Answered by whether it was there."""

    key: str


@dataclass(frozen=True)
class StoreCount:
    """Answered by the number of keys that begin with `prefix`."""

    prefix: str


@dataclass(frozen=True)
class Refused:
    """The answer to a request that cannot be done."""

    reason: str


Status = WorkerStatus | AgentStatus
Word = WorkerWord | AgentWord
StoreCall = StoreSet | StoreGet | StoreAdd | StoreCompareSet | StoreDelete | StoreCount
Request = Scale | Ask | SetJournal | StoreCall
Message = Status | Request

_KEY = text(64, least=1)
_NAME = text(255)
_LINE = text(_LINE_CHARACTERS)
_VIEW_NUMBER = number(0, 1 << 53)
_PID = number(0, 1 << 32)
_STORE_KEY = text(512, least=1)
_VALUE = octets(1 << 16)

_STEP = number(0, 1 << 53)
_PHASE = choice((*PHASES, UNKNOWN))

_RANK = number(0, 4096)

_STILL = record(Still, seconds=fields.real(0.0, 1e9), waiting=flag, step=_STEP, phase=_PHASE)
_NOTE = record(
    WorkerNote, pid=_PID, alive=flag, ended=flag, cause=_LINE, preempted=flag, step=_STEP, phase=_PHASE,
    unheard=fields.optional(_RANK), still=fields.optional(_STILL),
)  # fmt: skip
_LOSS = record(Loss, cause=_LINE, step=_STEP, phase=_PHASE)
_MEMBER = record(
    Member, role=text(16), rank=_RANK, host=_NAME, pid=_PID, key=_KEY, agent=text(64), seat=number(0, 4096),
    address=_NAME,
)  # fmt: skip
_VIEW = fields.optional(record(View, number=_VIEW_NUMBER, members=array(_MEMBER, 4096)))

_CALLS: dict[str, Callable[[Any], Message]] = {
    "worker": record(
        WorkerStatus, key=_KEY, agent=text(64), host=_NAME, pid=_PID, seat=number(0, 4096), address=_NAME,
        fit=number(0, 1 << 20), view=_VIEW_NUMBER, state=choice(_STATES),
    ),
    "agent": record(
        AgentStatus, agent=_KEY, host=_NAME, home=flag, capacity=number(0, 4096), workers=mapping(_KEY, _NOTE, 4096),
        leaving=flag, stopping=flag, condemned=mapping(_KEY, _LINE, 4096),
    ),
    "scale": record(Scale, workers=number(1, 4096)),
    "ask": record(Ask),
    "journal": record(SetJournal, directory=text(4096, least=1)),
    "set": record(StoreSet, key=_STORE_KEY, value=_VALUE),
    "get": record(StoreGet, keys=array(_STORE_KEY, MOST_STORE_KEYS), wait_s=fields.real(0.0, 10.0)),
    "add": record(StoreAdd, key=_STORE_KEY, amount=number(-(1 << 53), 1 << 53)),
    "compare_set": record(StoreCompareSet, key=_STORE_KEY, expected=_VALUE, value=_VALUE),
    "delete": record(StoreDelete, key=_STORE_KEY),
    "count": record(StoreCount, prefix=text(512)),
}  # fmt: skip
_KIND_OF = {
    WorkerStatus: "worker", AgentStatus: "agent", Scale: "scale", Ask: "ask", SetJournal: "journal", StoreSet: "set",
    StoreGet: "get", StoreAdd: "add", StoreCompareSet: "compare_set", StoreDelete: "delete", StoreCount: "count",
}  # fmt: skip
_REPLIES: dict[str, Callable[[Any], Any]] = {
    "worker-word": record(
        WorkerWord, view=_VIEW, broken=_VIEW_NUMBER, change=_VIEW_NUMBER, over=number(0, 1 << 21), leave=flag,
        out=_LINE, awaited=array(_LINE, 64), running=flag,
    ),
    "agent-word": record(
        AgentWord, evict=mapping(_KEY, _LINE, 4096), target=fields.optional(number(0, 4096)), view=_VIEW, over=flag,
        lost=mapping(_KEY, _LOSS, 4096), unheard=mapping(_KEY, _RANK, 4096), stopping=flag,
        still=mapping(_KEY, _STILL, 4096),
    ),
    "answer": fields.anything,
    "refused": record(Refused, reason=_LINE),
}  # fmt: skip
_REPLY_KINDS: dict[type, str] = {WorkerWord: "worker-word", AgentWord: "agent-word", Refused: "refused"}

T = TypeVar("T")


def encode(message: Message, token: bytes) -> bytes:
    """A call as it goes over the wire."""
    body = asdict(message)
    for note in body.get("workers", {}).values() if isinstance(message, AgentStatus) else ():
        note["cause"] = _one_line(note["cause"])
    return _pack([_KIND_OF[type(message)], token, body])


def decode(data: bytes) -> tuple[Message, bytes]:
    """The call and its token. Raises `BadMessage`, and nothing else, on whatever is not exactly that."""
    return _unpack(data, _CALLS)


def encode_reply(reply: object, token: bytes) -> bytes:
    """The coordinator's word, or its answer: a plain value."""
    kind = _REPLY_KINDS.get(type(reply), "answer")
    return _pack([kind, token, reply if kind == "answer" else asdict(reply)])  # type: ignore[call-overload]


def decode_reply(data: bytes) -> tuple[Any, bytes]:
    """The word or plain value, and the token of the call that it answers, empty if of none. Raises `BadMessage`."""
    return _unpack(data, _REPLIES)


def _one_line(words: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in words[:_LINE_CHARACTERS])


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def _unpack(data: bytes, kinds: Mapping[str, Callable[[Any], T]]) -> tuple[T, bytes]:
    if len(data) > MAX_FRAME_BYTES:
        raise BadMessage("too long")
    try:
        whole = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadMessage("no msgpack") from error
    if not isinstance(whole, list) or len(whole) != 3:
        raise BadMessage("no call")
    kind, token, body = whole
    if not isinstance(kind, str) or kind not in kinds:
        raise BadMessage("no known kind")
    if not isinstance(token, bytes) or len(token) > TOKEN_BYTES:
        raise BadMessage("no token")
    return kinds[kind](body), token
