"""The parts of the bulk transport, each by itself."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.comm.bulk.blocks import Block, Borrower, Lender
from shoal.comm.bulk.copying import copy
from shoal.comm.bulk.errors import BadMessage, Ended
from shoal.comm.bulk.loop import Loop
from shoal.comm.bulk.memory import MOST_IDLE_BYTES, Pool, Private, lent, private_pool, size_class
from shoal.comm.bulk.message import ArraySpec, Message
from shoal.comm.bulk.session import Address, choose_encryption, choose_way, plain_name

pytestmark = pytest.mark.unit


@given(st.integers(1, 1 << 40))
def test_a_size_class_is_enough_and_not_much_more(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes
    assert size % mmap.PAGESIZE == 0
    assert size <= max(64 << 10, nbytes + max(nbytes // 7, mmap.PAGESIZE))
    assert size_class(size) == size


def test_lent_memory_comes_back_with_the_last_view() -> None:
    back: list[bool] = []
    whole = lent(np.frombuffer(mmap.mmap(-1, 4096), np.uint8), lambda: back.append(True))
    view = whole[10:20].view(np.uint8)[2:]
    reshaped = whole.reshape(64, 64)[3].view(np.float32)
    del whole, view
    gc.collect()
    assert not back
    del reshaped
    gc.collect()
    assert back == [True]


def test_a_pool_gives_the_same_memory_again_and_keeps_no_more_than_its_share() -> None:
    dropped: list[int] = []
    pool = Pool(Private, lambda chunk: dropped.append(chunk.nbytes))
    first = pool.lend(100_000)
    address = first.__array_interface__["data"][0]
    other = pool.lend(100_000)
    assert other.__array_interface__["data"][0] != address
    del first
    assert pool.lend(99_000).__array_interface__["data"][0] == address
    del other
    third = MOST_IDLE_BYTES // 3 + 1
    many = [pool.lend(third) for _ in range(4)]
    many.clear()
    assert pool.idle_bytes <= MOST_IDLE_BYTES
    assert dropped
    pool.trim(time.monotonic() + 1000)
    assert pool.idle_bytes == 0


def test_views_may_die_in_any_thread_and_in_the_middle_of_anything() -> None:
    pool = private_pool()

    def work() -> None:
        for number in range(300):
            pool.lend(70_000 + number % 3 * 70_000)[:] = number % 256

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < pool.idle_bytes < 4 * 4 * 300_000


@pytest.mark.parametrize("length", [0, 1, 1000, 600_001, 3_000_017])
def test_large_arrays_are_copied_like_small_ones(length: int) -> None:
    source = np.random.default_rng(0).normal(size=length)
    destination = np.zeros(length + 2)
    copy(destination[1:-1], source)
    np.testing.assert_array_equal(destination[1:-1], source)
    assert destination[0] == destination[-1] == 0


def test_copies_work_in_a_forked_child() -> None:
    large = np.arange(1_000_000)
    copy(np.empty_like(large), large)  # its threads are there now, and will not be in the child
    child = os.fork()
    if child == 0:
        status = 1
        try:
            there = np.empty_like(large)
            copy(there, large)
            status = 0 if np.array_equal(there, large) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


class Pair:
    """A lender and a borrower, without a socket between them."""

    def __init__(self) -> None:
        self.lender, self.borrower = Lender(), Borrower()

    def send(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        places, fresh = self.lender.place(arrays)
        self.borrower.adopt([(one.number, one.nbytes) for one in fresh], [one.descriptor for one in fresh])
        for block in fresh:
            block.close()
        self.borrower.forget(self.lender.dropped())
        return self.borrower.arrays([(ArraySpec.of(one), place) for one, place in zip(arrays, places, strict=True)])

    def answer(self) -> None:
        self.lender.released(self.borrower.released())


def test_blocks_carry_arrays_and_are_used_again() -> None:
    pair = Pair()
    for number in range(20):
        sent = [np.full(30_000, number), np.full((10, 1000), -number, np.int16)]
        came = pair.send(sent)
        for one, other in zip(came, sent, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.flags.aligned
        del came, one
        pair.answer()
    assert len(pair.lender._known) == 1


def test_a_block_that_is_still_looked_at_is_not_written_to() -> None:
    pair = Pair()
    kept = [pair.send([np.full(30_000, number)])[0] for number in range(5)]
    pair.answer()
    assert [int(array[-1]) for array in kept] == list(range(5))
    assert len(pair.lender._known) == 5


def test_a_buffer_is_not_copied_and_stays_while_either_side_looks_at_it() -> None:
    pair = Pair()
    buffer = pair.lender.buffer(400_000)
    mine = buffer[64:].view(np.float64)[:40_000]
    mine[:] = 5
    (came,) = pair.send([mine])
    mine[0] = 6  # not allowed, but it shows that both look at the same memory
    assert came[0] == 6
    del came
    pair.answer()
    other = pair.lender.buffer(400_000)
    assert other.__array_interface__["data"][0] != buffer.__array_interface__["data"][0]
    address = buffer.__array_interface__["data"][0]
    del buffer, mine, other
    again = [pair.lender.buffer(400_000) for _ in range(2)]
    assert address in {one.__array_interface__["data"][0] for one in again}
    with pytest.raises(BadMessage, match="buffers"):
        pair.send([pair.lender.buffer(70_000)[:10] for _ in range(200)])


def test_what_is_sent_back_is_named_and_its_block_stays_while_either_side_looks_at_it() -> None:
    pair = Pair()
    buffer = pair.lender.buffer(400_000)
    mine = buffer.view(np.float64)[:40_000]
    mine[:] = 5
    address = _address(buffer)
    (came,) = pair.send([mine])
    del mine, buffer
    came += 1  # where it lies
    found = pair.borrower.find(came[100:])
    assert found is not None
    back = pair.lender.returned(ArraySpec.of(came[100:]), *found)
    assert _address(back) == address + 800
    assert (back == 6).all()
    del came
    pair.answer()
    others = [pair.lender.buffer(400_000) for _ in range(3)]
    assert address not in {_address(one) for one in others}
    assert (back == 6).all()
    del back
    assert _address(pair.lender.buffer(400_000)) == address
    assert pair.borrower.find(np.ones(10)) is None


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def test_what_the_other_side_says_of_blocks_is_not_believed() -> None:
    pair = Pair()
    came = pair.send([np.ones(30_000)])
    with pytest.raises(Ended):
        pair.lender.released([0, 0])
    with pytest.raises(Ended):
        pair.lender.released([17])
    spec = ArraySpec.parse("<f8", [30_000])
    for place in ((9, 0), (0, 1 << 40), (0, 200_000)):
        with pytest.raises(Ended):
            pair.borrower.arrays([(spec, place)])
        with pytest.raises(Ended):
            pair.lender.returned(spec, *place)
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 65536)
    block = Block(50, 65536)
    for number, nbytes, descriptor in (
        (60, 65536, unsealed),
        (61, 65537, block.descriptor),
        (0, 65536, block.descriptor),
    ):
        with pytest.raises(Ended):
            pair.borrower.adopt([(number, nbytes)], [descriptor])
    os.close(unsealed)
    with pytest.raises(PermissionError):
        os.ftruncate(block.descriptor, 10)  # or its reader would die of it
    assert (came[0] == 1).all()
    other = Pair()
    assert len(other.send([np.ones(30_000)])) == 1  # and dropped at once
    other.answer()
    with pytest.raises(Ended):
        other.lender.returned(spec, 0, 0)  # it was released: something else may lie there


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.1:80", "10.0.0.1", 80), ("tcp://node-a:5", "node-a", 5), ("[::1]:7", "::1", 7)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address


def test_what_is_encrypted_and_what_is_shared() -> None:
    assert choose_way("auto", True) == "shm"
    assert choose_way("auto", False) == choose_way("tcp", True) == "tcp"
    assert choose_way("shm", False) is None
    assert choose_encryption("auto", "auto", same_host=False)
    assert not choose_encryption("auto", "auto", same_host=True)
    assert not choose_encryption("auto", "off", same_host=False)
    assert choose_encryption("off", "on", same_host=True)


def test_a_name_can_be_shown_whatever_came() -> None:
    assert plain_name("worker 3") == "worker 3"
    assert plain_name("a\x1b[31m\n") == "a?[31m?"
    assert len(plain_name("x" * 1000)) == 100
    assert plain_name(b"\0") == plain_name("") == "client"


def test_the_loop_calls_waits_and_survives_errors(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    done: list[str] = []
    loop.later(0.02, lambda: done.append("second"))
    loop.later(0.01, lambda: done.append("first"))
    loop.later(0.015, lambda: done.append("never")).cancel()
    loop.later(0.03, loop.stop)
    loop.call(lambda: done.append("at once"))
    loop.call(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    loop.run()
    loop.close()
    loop.close()
    loop.call(lambda: done.append("too late"))
    assert done == ["at once", "first", "second"]
    assert "ZeroDivisionError" in caplog.text


def test_a_message_has_its_own_list_of_arrays() -> None:
    assert Message({}).arrays is not Message({}).arrays
