"""The sending half of a connection: messages go in whole and out in pieces, as fast as the socket takes them."""

from __future__ import annotations

import array
import socket
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

from shoal.comm.bulk.blocks import Block, Borrower, Lender
from shoal.comm.bulk.envelope import (
    INLINE,
    INLINE_BYTES,
    MAX_INLINE_BYTES,
    STREAMED,
    Back,
    Kind,
    Place,
    pack_envelope,
    pack_head,
    pack_header,
)
from shoal.comm.bulk.errors import BadMessage, Ended
from shoal.comm.bulk.message import MAX_ARRAYS, MAX_MESSAGE_BYTES, Array, ArraySpec, Message, contiguous, flat_view
from shoal.comm.bulk.seal import SMALL_BYTES, Buffer, Seal

_TURN_BYTES = 8 << 20  # after so much, others get their turn
_ENOUGH_DESCRIPTORS = 100  # to send along at once: one more message may have 129, and the kernel takes 253


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Both directions of shared memory of a connection."""

    lender: Lender
    borrower: Borrower


@dataclass(slots=True)
class Traffic:
    """Bytes of heads, arrays and seals; what goes through shared memory counts as if it were sent."""

    sent: int = 0
    received: int = 0


class Outgoing:
    """A message on its way out. Raises `BadMessage` if it breaks a limit."""

    __slots__ = ("arrays", "head", "kind", "nbytes", "number", "specs")

    def __init__(self, kind: Kind, number: int, message: Message) -> None:
        self.kind, self.number = kind, number
        self.head = pack_head(message.head)
        self.specs = [ArraySpec.of(one) for one in message.arrays]
        self.nbytes = len(self.head) + sum([spec.nbytes for spec in self.specs])
        if len(self.specs) > MAX_ARRAYS or self.nbytes > MAX_MESSAGE_BYTES:
            raise BadMessage(
                f"a message of {len(self.specs)} arrays with {self.nbytes} bytes: "
                f"{MAX_ARRAYS} and {MAX_MESSAGE_BYTES} are the limits"
            )
        self.arrays: list[Array] = [contiguous(one) for one in message.arrays]


class Outlet:
    """Used by one thread at a time, as all of a connection. `blocked`: there is more to send than the socket takes."""

    def __init__(self, sock: socket.socket, seal: Seal, shared: SharedMemory | None, traffic: Traffic) -> None:
        self._socket, self._seal, self._shared, self._traffic = sock, seal, shared, traffic
        self._queue: deque[Outgoing] = deque()
        self._stream: Generator[list[Buffer], None, None] | None = None  # the arrays of a message that is half out
        self._batch: list[Buffer] = []  # what is to be sent next
        self._fresh: list[Block] = []  # blocks whose descriptors go along with it
        self.blocked = False
        self.queued_bytes = 0

    def put(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self.queued_bytes += outgoing.nbytes

    def flush(self) -> None:
        """Send what the socket takes now. Raises `Ended` if the connection is gone."""
        sent = 0
        try:
            while sent < _TURN_BYTES:
                if not self._batch and not self._gather():
                    self.blocked = False
                    return
                sent += self._send()
        except BlockingIOError:
            pass
        except OSError as error:
            raise Ended(f"the connection broke: {error.strerror}") from None
        self.blocked = True

    def _send(self) -> int:
        batch = self._batch
        if self._fresh:
            numbers = array.array("i", [block.descriptor for block in self._fresh])
            sent = self._socket.sendmsg(batch, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
            for block in self._fresh:
                block.close()
            self._fresh = []
        else:
            sent = self._socket.sendmsg(batch)
        self._traffic.sent += sent
        left = sent
        while batch and left >= len(batch[0]):
            left -= len(batch.pop(0))
        if left:
            batch[0] = memoryview(batch[0])[left:]
        return sent

    def _gather(self) -> bool:
        """Make the next batch: several small messages, or the next piece of a long one with what stands before it."""
        size = 0
        # no more than that: a large piece may lie in memory that the next one needs
        while size <= SMALL_BYTES and len(self._fresh) <= _ENOUGH_DESCRIPTORS:
            if self._stream is not None:
                piece = next(self._stream, None)
                if piece is None:
                    self._stream = None
                    continue
            elif self._queue:
                piece = self._begin(self._queue.popleft())
            else:
                break
            self._batch += piece
            size += sum([len(buffer) for buffer in piece])
        return bool(self._batch)

    def _begin(self, outgoing: Outgoing) -> list[Buffer]:
        """The first piece of a message. What is to be streamed follows."""
        places, fresh = self._place(outgoing)
        arrays = list(zip(outgoing.specs, places, strict=True))
        if self._shared is None:
            body = pack_envelope(outgoing.head, arrays)
        else:
            # they arrive with the first byte of the batch: before the message or with it, and in order
            self._fresh += fresh
            released, dropped = self._shared.borrower.released(), self._shared.lender.dropped()
            told = [(block.number, block.nbytes) for block in fresh]
            body = pack_envelope(outgoing.head, arrays, released, dropped, told)
        envelope_bytes = len(body)
        if INLINE in places:
            small = [one.tobytes() for one, place in zip(outgoing.arrays, places, strict=True) if place == INLINE]
            body = b"".join([body, *small])
        header = pack_header(outgoing.kind, outgoing.number, envelope_bytes, len(body) - envelope_bytes)
        if STREAMED in places:
            self._stream = self._pieces(outgoing, places)
        else:
            self.queued_bytes -= outgoing.nbytes
        return [header, *self._seal.close(header, body)]

    def _pieces(self, outgoing: Outgoing, places: list[Place]) -> Generator[list[Buffer], None, None]:
        for one, place in zip(outgoing.arrays, places, strict=True):
            if place == STREAMED:
                yield from self._seal.send(flat_view(one))
        self.queued_bytes -= outgoing.nbytes

    def _place(self, outgoing: Outgoing) -> tuple[list[Place], list[Block]]:
        """How each array travels, and the new blocks that must go along."""
        places: list[Place] = [STREAMED] * len(outgoing.specs)
        inline, large = 0, []
        for index, spec in enumerate(outgoing.specs):
            if spec.nbytes <= INLINE_BYTES and inline + spec.nbytes <= MAX_INLINE_BYTES:
                places[index] = INLINE
                inline += spec.nbytes
            else:
                large.append(index)
        if self._shared is None or not large:
            return places, []
        mine = []
        for index in large:
            theirs = self._shared.borrower.find(outgoing.arrays[index])
            if theirs is not None:
                self._put(outgoing, places, index, Back(*theirs))
            else:
                mine.append(index)
        try:
            found, fresh = self._shared.lender.place([outgoing.arrays[index] for index in mine])
        except (OSError, MemoryError):
            return places, []  # no more shared memory to be had: through the socket, then
        for index, place in zip(mine, found, strict=True):
            self._put(outgoing, places, index, place)
        return places, fresh

    def _put(self, outgoing: Outgoing, places: list[Place], index: int, place: Place) -> None:
        places[index] = place
        self._traffic.sent += outgoing.specs[index].nbytes
