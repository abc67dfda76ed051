"""Memory that two processes share: made by the one that sends, read where it lies by the one that receives.

A block is a memfd without a name, sealed so that it can never shrink under its reader. Its descriptor goes along with
the first message that lies in it; both sides close it once the block is mapped. When the receiver has dropped its last
view, it says so, and the sender uses the block again. An array that the receiver sends back, as it came or changed
where it lies, is named and not copied: both have it. If either dies, nothing is left behind.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial

import numpy as np

from shoal.comm.bulk.copying import copy
from shoal.comm.bulk.errors import BadMessage, Ended
from shoal.comm.bulk.mapping import Mapping
from shoal.comm.bulk.memory import Chunk, Pool, lent
from shoal.comm.bulk.message import MAX_MESSAGE_BYTES, Array, ArraySpec, Bytes

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ALIGNMENT = 64
_MAX_BLOCKS = 4096
_MOST_BUFFERS = 128  # descriptors that may go along with one message


class Block(Chunk):
    """A chunk of shared memory. `descriptor` is that of its memfd until the other side has been given it."""

    __slots__ = ("_mapping", "address", "bytes", "descriptor", "number")

    def __init__(self, number: int, nbytes: int) -> None:
        super().__init__(nbytes)
        self.number = number
        self.descriptor = os.memfd_create("shoal-bulk", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, nbytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._mapping = Mapping(self.descriptor, nbytes)
        except BaseException:
            self.close()
            raise
        self.bytes = self.whole()
        self.address = self._mapping.address

    def whole(self) -> Bytes:
        return np.asarray(self._mapping)

    def close(self) -> None:
        """Close the descriptor. The memory stays as long as someone has mapped it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


class Lender:
    """The blocks of the side that sends. `buffer` may be called from any thread, the rest by the one who sends."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._known: dict[int, Block] = {}  # those that the other side has been told of
        self._flying: Counter[int] = Counter()  # in how many messages that the other side still holds
        self._dropped: deque[int] = deque()
        self._lock = threading.Lock()
        self._buffers: dict[int, Block] = {}  # by address: what our own side fills, or has filled
        self._left: deque[Block] = deque()  # buffers of which our own side has no view any more
        self._pool: Pool[Block] = Pool(lambda nbytes: Block(next(self._numbers), nbytes), self._unmake)

    def buffer(self, nbytes: int) -> Bytes:
        """Memory for arrays that are to be sent."""
        with self._lock:
            self._settle()
        block = self._pool.take(nbytes)
        whole = lent(block.whole(), partial(self._left.append, block))
        with self._lock:
            self._buffers[block.address] = block
        return whole[:nbytes]

    def place(self, arrays: Sequence[Array]) -> tuple[list[tuple[int, int]], list[Block]]:
        """Where in shared memory `arrays` (contiguous) lie, after a copy of those that did not: block and offset each.
        Also the blocks of which the other side must be told first."""
        with self._lock:
            self._settle()
            found = [self._find(array) for array in arrays]
        used = {block.number: block for block, _ in filter(None, found)}
        if len(used) > _MOST_BUFFERS:
            raise BadMessage(f"a message out of {len(used)} buffers: put its arrays into one, {_MOST_BUFFERS} at most")
        for block in used.values():
            self._pool.use(block)
        total = sum(_aligned(array.nbytes) for array, hit in zip(arrays, found, strict=True) if hit is None)
        common = self._pool.take(total) if total else None
        places, offset = [], 0
        for array, hit in zip(arrays, found, strict=True):
            if hit is not None:
                places.append((hit[0].number, hit[1]))
                continue
            assert common is not None
            copy(ArraySpec.of(array).over(common.bytes[offset:]), array)
            places.append((common.number, offset))
            offset += _aligned(array.nbytes)
        if common is not None:
            used[common.number] = common
        self._flying.update(list(used))
        fresh = [block for block in used.values() if block.number not in self._known]
        self._known.update((block.number, block) for block in fresh)
        return places, fresh

    def released(self, numbers: Sequence[int]) -> None:
        """The other side has read a message that lay in these blocks. Raises `Ended` if it cannot have."""
        for number in numbers:
            block = self._known.get(number)
            if block is None or self._flying[number] <= 0:
                raise Ended("the other side gives back memory that it does not have")
            self._flying[number] -= 1
            self._pool.give_back(block)

    def returned(self, spec: ArraySpec, number: int, offset: int) -> Array:
        """An array in one of these blocks that the other side has, and sends back. Raises `Ended` if it has not. The
        block is used again when all views of it are gone, and the other side has none either."""
        block = self._known.get(number)
        if block is None or self._flying[number] <= 0 or offset + spec.nbytes > block.nbytes:
            raise Ended("the other side gives back memory that it does not have")
        self._pool.use(block)
        return spec.over(lent(block.whole(), partial(self._pool.give_back, block))[offset:])

    def dropped(self) -> list[int]:
        """Blocks that are no more, and of which the other side has not been told yet."""
        return [self._dropped.popleft() for _ in range(min(len(self._dropped), _MAX_BLOCKS))]

    @property
    def has_news(self) -> bool:
        return bool(self._dropped)

    def trim(self, now_s: float) -> None:
        with self._lock:
            self._settle()
        self._pool.trim(now_s)

    def close(self) -> None:
        """Let go of all blocks that are not in use on this side."""
        self._pool.close()
        self._known.clear()

    def _find(self, array: Array) -> tuple[Block, int] | None:
        """The buffer in which `array` lies, and where in it."""
        if self._buffers:
            address = array.__array_interface__["data"][0]
            for start, block in self._buffers.items():
                if start <= address and address + array.nbytes <= start + block.nbytes:
                    return block, address - start
        return None

    def _settle(self) -> None:
        while self._left:
            block = self._left.popleft()
            del self._buffers[block.address]
            self._pool.give_back(block)

    def _unmake(self, block: Block) -> None:
        if self._known.pop(block.number, None) is not None:
            self._dropped.append(block.number)
        self._flying.pop(block.number, None)


class Borrower:
    """The blocks of the other side. Used by the one who receives; views may die in any thread."""

    def __init__(self) -> None:
        self._maps: dict[int, Mapping] = {}
        self._released: deque[int] = deque()

    def adopt(self, fresh: Sequence[tuple[int, int]], descriptors: Sequence[int]) -> None:
        """Map new blocks. Raises `Ended` if one is not what it should be. The descriptors stay the caller's."""
        for (number, nbytes), descriptor in zip(fresh, descriptors, strict=True):
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            proper = 0 < nbytes <= 2 * MAX_MESSAGE_BYTES and os.fstat(descriptor).st_size == nbytes
            if not proper or not seals & fcntl.F_SEAL_SHRINK or number in self._maps or len(self._maps) >= _MAX_BLOCKS:
                raise Ended("the other side offers memory that cannot be used")
            self._maps[number] = Mapping(descriptor, nbytes)

    def arrays(self, wanted: Sequence[tuple[ArraySpec, tuple[int, int]]]) -> list[Array]:
        """The arrays of one message, where they lie. When all views of those in a block are gone, it is released."""
        bases: dict[int, Bytes] = {}
        found = []
        for spec, (number, offset) in wanted:
            if number not in self._maps or offset + spec.nbytes > self._maps[number].nbytes:
                raise Ended("the other side names memory that there is not")
            if number not in bases:
                bases[number] = lent(np.asarray(self._maps[number]), partial(self._released.append, number))
            found.append(spec.over(bases[number][offset:]))
        return found

    def find(self, array: Array) -> tuple[int, int] | None:
        """The block in which `array`, or what it is a view of, has come, and where in it."""
        address = array.__array_interface__["data"][0]
        for number, found in self._maps.items():
            if found.address <= address and address + array.nbytes <= found.address + found.nbytes:
                return number, address - found.address
        return None

    def released(self) -> list[int]:
        """Blocks of which the other side has not been told yet that it may use them again."""
        return [self._released.popleft() for _ in range(min(len(self._released), _MAX_BLOCKS))]

    @property
    def has_news(self) -> bool:
        return bool(self._released)

    def forget(self, numbers: Sequence[int]) -> None:
        """The other side has dropped these blocks."""
        for number in numbers:
            self._maps.pop(number, None)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
