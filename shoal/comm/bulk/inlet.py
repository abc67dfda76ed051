"""The receiving half of a connection: bytes go straight to where they shall lie, and come out as messages."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import numpy as np

from shoal.comm.bulk.copying import copy
from shoal.comm.bulk.envelope import HEADER_BYTES, INLINE, STREAMED, Back, Envelope, Header, Kind
from shoal.comm.bulk.errors import BadMessage, Ended
from shoal.comm.bulk.memory import Pool, Private
from shoal.comm.bulk.message import Array, ArraySpec, Message, flat_view
from shoal.comm.bulk.outlet import SharedMemory, Traffic
from shoal.comm.bulk.seal import CHUNK_BYTES, Seal

_STAGE_BYTES = 64 << 10
_TURN_BYTES = 8 << 20  # after so much, others get their turn
_POOLED_BYTES = 256 << 10  # smaller arrays get memory of their own
_LOW_WATER_BYTES = 256 << 10  # of a large array, do not wake up for less
_DESCRIPTOR_ROOM = socket.CMSG_SPACE(253 * 4)  # as many as the kernel passes along at once

OnFrame = Callable[[Kind, int, Message], None]
Offer = Callable[[Kind, int, dict[str, Any], Sequence[ArraySpec]], Sequence[Array | None] | None]
# yields views that are to be filled before it goes on, and returns what is to be done then
Filling = Generator[list[memoryview], None, Callable[[], None]]


class Inlet:
    """Used by one thread at a time, as all of a connection.

    `on_frame(kind, number, message)` is called for each message. `offer(kind, number, head, specs)` is asked before the
    arrays arrive, and may offer memory for each.

    Small messages are read into a stage, several at a time, and taken from there. What does not fit there, and arrays
    that are streamed, are filled in one view after the other.
    """

    def __init__(
        self,
        sock: socket.socket,
        seal: Seal,
        shared: SharedMemory | None,
        traffic: Traffic,
        pool: Pool[Private],
        on_frame: OnFrame,
        offer: Offer,
    ) -> None:
        self._socket, self._seal, self._shared, self._traffic, self._pool = sock, seal, shared, traffic, pool
        self._on_frame, self._offer = on_frame, offer
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._begin = self._end = 0  # of what is in the stage and not taken yet
        self._filling: Filling | None = None
        self._wanted: list[memoryview] = []
        self._left = 0  # bytes on the wire that will certainly come to fill it
        self._descriptors: deque[int] = deque()
        self._tcp = sock.family != socket.AF_UNIX
        self._low_water = 1

    def fill(self) -> None:
        """Take in what has come, up to a limit. Raises `Ended` if the connection is gone, or not what it should be."""
        received = 0
        try:
            while received < _TURN_BYTES:
                if self._filling is None:
                    room = len(self._stage) - self._end
                    count = self._receive([self._stage[self._end :]])
                    self._end += count
                    self._take()
                else:
                    room = sum([len(view) for view in self._wanted])
                    count = self._receive(self._wanted)
                    self._advance(count)
                received += count
                if count < room:
                    return  # that was all there is
        except BlockingIOError:
            return
        except BadMessage as error:
            raise Ended(f"the other side sends nonsense: {error}") from None
        except OSError as error:
            raise Ended(f"the connection broke: {error.strerror}") from None

    def close(self) -> None:
        if self._filling is not None:
            with contextlib.suppress(ValueError):  # it may be what calls us
                self._filling.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _receive(self, buffers: list[memoryview]) -> int:
        if self._tcp:
            count = self._socket.recvmsg_into(buffers)[0]
        else:
            count, ancillary, _, _ = self._socket.recvmsg_into(buffers, _DESCRIPTOR_ROOM, socket.MSG_CMSG_CLOEXEC)
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers = array.array("i")
                    numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                    self._descriptors.extend(numbers)
        if count == 0:
            raise Ended("the other side has closed the connection")
        self._traffic.received += count
        return count

    # small messages, from the stage

    def _take(self) -> None:
        """Take messages out of the stage, until one is not whole."""
        while self._filling is None and self._end - self._begin >= HEADER_BYTES:
            wire_header = self._stage[self._begin : self._begin + HEADER_BYTES]
            header = Header.unpack(wire_header)
            start = self._begin + HEADER_BYTES
            end = start + header.body_bytes + self._seal.tag_bytes
            if end <= self._end:
                self._begin = end
                self._take_body(header, self._seal.open(wire_header, self._stage[start:end]))
            elif end - start > _STAGE_BYTES // 2:
                self._begin = start
                self._left = end - start
                self._filling = self._long_body(header, bytes(wire_header))
            else:
                break
            if self._filling is not None:
                self._go_on()
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin and self._filling is None:
            rest = bytes(self._stage[self._begin : self._end])
            self._stage[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)

    def _long_body(self, header: Header, wire_header: bytes) -> Filling:
        wire = memoryview(bytearray(self._left))
        yield [wire]
        return partial(self._take_body, header, self._seal.open(wire_header, wire))

    # long ones, piece by piece

    def _advance(self, count: int) -> None:
        """Note that `count` bytes have arrived where they were wanted."""
        wanted = self._wanted
        self._left -= count
        while wanted and count >= len(wanted[0]):
            count -= len(wanted.pop(0))
        if count:
            wanted[0] = wanted[0][count:]
        self._go_on()
        if self._filling is None:
            self._take()

    def _go_on(self) -> None:
        """Go on as far as the bytes that are there allow."""
        while self._filling is not None and not self._wanted:
            try:
                self._wanted = next(self._filling)
            except StopIteration as done:
                self._filling = None
                done.value()  # it may be the beginning of another
                continue
            while self._wanted and self._begin < self._end:
                first = self._wanted[0]
                count = min(len(first), self._end - self._begin)
                first[:count] = self._stage[self._begin : self._begin + count]
                self._begin += count
                self._left -= count
                if count == len(first):
                    self._wanted.pop(0)
                else:
                    self._wanted[0] = first[count:]
        if self._begin == self._end:
            self._begin = self._end = 0
        if self._tcp:
            self._set_low_water()

    def _set_low_water(self) -> None:
        """Have the kernel wake us for much at once while an array comes in, and for every byte otherwise."""
        water = max(1, min(self._left, _LOW_WATER_BYTES))  # never wait for more than there will be
        if water != self._low_water:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, water)
            self._low_water = water

    def _take_body(self, header: Header, body: memoryview) -> None:
        """Pass on a message of which the body is there, or begin to fill the arrays that follow."""
        envelope = Envelope.unpack(body[: header.envelope_bytes])
        arrays, streamed = self._find_arrays(header, envelope, body[header.envelope_bytes :])
        message = Message(envelope.head, arrays)
        if streamed:
            chunks = sum([-(-len(view) // CHUNK_BYTES) for view in streamed])
            self._left = sum([len(view) for view in streamed]) + chunks * self._seal.tag_bytes
            self._filling = self._streamed(header, message, streamed)
        else:
            del arrays  # what the receiver drops must not live on here
            self._pass_on(header, message)

    def _find_arrays(
        self, header: Header, envelope: Envelope, small: memoryview
    ) -> tuple[list[Array], list[memoryview]]:
        """The arrays of a message, and views of those that are still to come."""
        arrays: list[Array] = []
        streamed = []
        shared = iter(self._borrowed(envelope))
        for (spec, place), mine in zip(envelope.arrays, self._offers(header, envelope), strict=True):
            if place == STREAMED:
                arrays.append(self._memory(spec) if mine is None else mine)
                if spec.nbytes:
                    streamed.append(flat_view(arrays[-1]))
                continue
            if place == INLINE:
                if spec.nbytes > len(small):
                    raise BadMessage("the small arrays of a message are not there")
                found = spec.read(small)
                small = small[spec.nbytes :]
            else:
                found = next(shared)
            if mine is not None:
                copy(mine, found)
            arrays.append(found if mine is None else mine)
        return arrays, streamed

    def _streamed(self, header: Header, message: Message, views: list[memoryview]) -> Filling:
        for view in views:
            yield from self._seal.receive(view)
        return partial(self._pass_on, header, message)

    def _pass_on(self, header: Header, message: Message) -> None:
        if header.kind is not Kind.NOTICE:
            self._on_frame(header.kind, header.number, message)

    def _offers(self, header: Header, envelope: Envelope) -> Sequence[Array | None]:
        specs = [spec for spec, _ in envelope.arrays]
        offered = self._offer(header.kind, header.number, envelope.head, specs) if specs else None
        if offered is None or len(offered) != len(specs):
            return [None] * len(specs)
        return [one if one is not None and spec.fits(one) else None for spec, one in zip(specs, offered, strict=True)]

    def _borrowed(self, envelope: Envelope) -> list[Array]:
        shared = self._shared
        wanted = [(spec, place) for spec, place in envelope.arrays if isinstance(place, tuple)]
        if shared is None:
            if wanted or envelope.fresh or envelope.released or envelope.dropped:
                raise BadMessage("shared memory, where there is none")
            return []
        if envelope.released:
            shared.lender.released(envelope.released)
        if envelope.fresh:
            self._adopt(shared, envelope.fresh)
        if envelope.dropped:
            shared.borrower.forget(envelope.dropped)
        self._traffic.received += sum([spec.nbytes for spec, _ in wanted])
        theirs = iter(shared.borrower.arrays([(spec, place) for spec, place in wanted if not isinstance(place, Back)]))
        return [
            shared.lender.returned(spec, place.number, place.offset) if isinstance(place, Back) else next(theirs)
            for spec, place in wanted
        ]

    def _adopt(self, shared: SharedMemory, fresh: Sequence[tuple[int, int]]) -> None:
        if len(self._descriptors) < len(fresh):
            raise BadMessage("shared memory without its descriptors")
        descriptors = [self._descriptors.popleft() for _ in fresh]
        try:
            shared.borrower.adopt(fresh, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _memory(self, spec: ArraySpec) -> Array:
        if spec.nbytes < _POOLED_BYTES:
            return np.empty(spec.shape, spec.dtype)
        return spec.over(self._pool.lend(spec.nbytes))
