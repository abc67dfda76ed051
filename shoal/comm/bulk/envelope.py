"""What precedes the arrays of a message on the wire: a header of fixed size and a packed envelope. Pure.

A frame is: header, body, and then the bytes of those arrays that are streamed, in order. The body is the envelope
(msgpack) followed by the bytes of small arrays, one after the other. What the seal adds is not part of this.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from shoal.comm.bulk.errors import BadMessage
from shoal.comm.bulk.message import MAX_ARRAYS, MAX_HEAD_BYTES, MAX_MESSAGE_BYTES, ArraySpec

_HEADER = struct.Struct("!IIQB3x")  # envelope bytes, inline bytes, number, kind
HEADER_BYTES = _HEADER.size
INLINE_BYTES = 4096  # an array up to this size travels in the body
MAX_INLINE_BYTES = 1 << 20  # of all arrays of a message
_MAX_ENVELOPE_BYTES = 4 * MAX_HEAD_BYTES + 64 * MAX_ARRAYS
_MAX_BLOCKS = 4096

_LIST_OF_THREE, _NIL = b"\x93", b"\xc0"  # as msgpack has them
_pack = msgpack.packb

INLINE, STREAMED = 0, 1


class Back(NamedTuple):
    """A place in a block of the receiver: what it has sent, or what was made of it, goes back without a copy."""

    number: int
    offset: int
    marked: bool = True  # so that it differs on the wire from a place in a block of the sender


Place = int | tuple[int, int] | Back  # INLINE, STREAMED, or the number of a shared block and an offset in it


class Kind(IntEnum):
    REQUEST = 1
    ANSWER = 2
    FAILURE = 3
    NOTICE = 4  # about shared blocks only


_KINDS = {int(kind): kind for kind in Kind}
Buffer = bytes | bytearray | memoryview


class Header(NamedTuple):
    kind: Kind
    number: int
    envelope_bytes: int
    body_bytes: int  # envelope and small arrays

    @classmethod
    def unpack(cls, data: Buffer) -> Header:
        """Raises `BadMessage` if a limit is broken, so that nobody is made to wait for bytes that never come."""
        envelope_bytes, inline_bytes, number, kind = _HEADER.unpack(data)
        if envelope_bytes > _MAX_ENVELOPE_BYTES or inline_bytes > MAX_INLINE_BYTES:
            raise BadMessage("a header beyond all limits")
        known = _KINDS.get(kind)
        if known is None:
            raise BadMessage(f"a frame of no known kind: {kind}")
        return cls(known, number, envelope_bytes, envelope_bytes + inline_bytes)


def pack_header(kind: Kind, number: int, envelope_bytes: int, inline_bytes: int) -> bytes:
    return _HEADER.pack(envelope_bytes, inline_bytes, number, kind)


class Envelope(NamedTuple):
    """`head` and `arrays` make the message. The rest is about shared memory: `released` are blocks of the receiver that
    the sender has read, `dropped` blocks of the sender that are no more, `fresh` new ones of it (number, bytes), whose
    descriptors come along in this order.
    """

    head: dict[str, Any]
    arrays: list[tuple[ArraySpec, Place]]
    released: list[int]
    dropped: list[int]
    fresh: list[tuple[int, int]]

    @classmethod
    def unpack(cls, data: Buffer) -> Envelope:
        """Raises `BadMessage` for anything that `pack_envelope` would not have made."""
        try:
            head, arrays, blocks = msgpack.unpackb(data, strict_map_key=False)
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
            raise BadMessage(f"an envelope that cannot be unpacked: {type(error).__name__}") from None
        if type(head) is not dict or type(arrays) is not list or len(arrays) > MAX_ARRAYS:
            raise BadMessage("an envelope of the wrong form")
        known = [_array(entry) for entry in arrays]
        if len(known) > 1 and sum([spec.nbytes for spec, _ in known]) > MAX_MESSAGE_BYTES:
            raise BadMessage("the arrays of a message are too large")
        if blocks is None:
            return cls(head, known, [], [], [])
        if type(blocks) is not list or len(blocks) != 3:
            raise BadMessage("an envelope of the wrong form")
        released, dropped, fresh = blocks
        return cls(head, known, _numbers(released), _numbers(dropped), [_pair(entry) for entry in _list(fresh)])


def pack_head(head: dict[str, Any]) -> bytes:
    """Raises `BadMessage` if it cannot be packed, or is too large."""
    try:
        packed: bytes = msgpack.packb(head)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadMessage(f"the head of a message cannot be sent: {error}") from None
    if len(packed) > MAX_HEAD_BYTES:
        raise BadMessage(f"the head of a message has {len(packed)} bytes when packed; {MAX_HEAD_BYTES} are the limit")
    return packed


def pack_envelope(
    head: bytes,
    arrays: Sequence[tuple[ArraySpec, Place]],
    released: Sequence[int] = (),
    dropped: Sequence[int] = (),
    fresh: Sequence[tuple[int, int]] = (),
) -> bytes:
    """What `Envelope.unpack` reads: a list of three. `head`: of `pack_head`."""
    named = [(spec.dtype.str, spec.shape, place) for spec, place in arrays]
    blocks = _pack((released, dropped, fresh)) if released or dropped or fresh else _NIL
    packed: bytes = _LIST_OF_THREE + head + _pack(named) + blocks
    return packed


def _array(entry: Any) -> tuple[ArraySpec, Place]:
    if not isinstance(entry, list) or len(entry) != 3:
        raise BadMessage("an array without type, shape and place")
    name, shape, place = entry
    spec = ArraySpec.parse(name, shape)
    if type(place) is int and place in (INLINE, STREAMED):
        return spec, place
    if type(place) is list and len(place) == 3 and place[2] is True:
        return spec, Back(*_pair(place[:2]))
    return spec, _pair(place)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MAX_BLOCKS:
        raise BadMessage("a list of blocks of the wrong form")
    return value


def _numbers(value: Any) -> list[int]:
    if not all(type(number) is int and number >= 0 for number in _list(value)):
        raise BadMessage("a list of blocks of the wrong form")
    return list(value)


def _pair(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(part) is int and part >= 0 for part in value):
        raise BadMessage("a place that is none")
    return value[0], value[1]
