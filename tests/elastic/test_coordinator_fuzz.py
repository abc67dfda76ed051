"""A member gone mad: a hundred thousand malformed messages from one that holds the run's key."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq
from elastic_messages import TOKEN, malformed
from elastic_process import PATIENCE_S, Coordination, control_page, coordination, eventually, raw_socket

from shoal.core.errors import ShoalError
from shoal.elastic.messages import StoreSet, encode

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

_WARM_UP, _COUNT = 10_000, 100_000
_GROWTH_BYTES = 20 << 20


@pytest.fixture
def run() -> Iterator[Coordination]:
    with coordination() as one:
        yield one


def _send(socket: zmq.Socket[bytes], count: int, seed: int) -> None:
    for data in malformed(count, seed):
        socket.send(data)


def test_malformed_messages_of_every_kind_change_nothing(run: Coordination) -> None:
    stop = threading.Event()
    answers: list[float] = []
    with (
        control_page() as control,
        run.worker("w0", control) as first,
        run.worker("w1", control) as second,
        raw_socket(run.address, run.keys) as mad,
    ):
        view = first.enter(0)
        joining = threading.Thread(target=second.enter, args=(0,))
        joining.start()
        eventually(lambda: first.change_wanted(view), "the second worker")
        view = first.next(view, broken=False)
        joining.join(PATIENCE_S)

        def keep_asking() -> None:
            store = first.store(view, PATIENCE_S)
            while not stop.is_set():
                answers.append(store.add("asked", 1))

        mad.connect(run.address)
        _send(mad, _WARM_UP, seed=1)
        eventually(lambda: run.report()["malformed"] == _WARM_UP, "the first of them")
        before = run.resident_bytes
        asking = threading.Thread(target=keep_asking)
        asking.start()
        try:
            _send(mad, _COUNT, seed=2)
            mad.send_multipart([b"several", b"frames"])
            eventually(lambda: run.report()["malformed"] == _WARM_UP + _COUNT + 1, "all of them")
        finally:
            stop.set()
            asking.join(PATIENCE_S)
        assert run.resident_bytes - before < _GROWTH_BYTES
        assert answers == [*range(1, len(answers) + 1)]
        assert answers
        report = run.report()
        assert report["view"] == view.to_json()
        assert [worker["state"] for worker in report["workers"]] == ["in", "in"]
        assert not first.change_wanted(view)
        assert not control.broken(view.number)


def test_a_member_that_fills_the_store_is_refused_and_the_memory_bounded(run: Coordination) -> None:
    with raw_socket(run.address, run.keys) as mad, run.link() as honest:
        mad.connect(run.address)
        before = run.resident_bytes
        for number in range(2000):
            mad.send(encode(StoreSet(f"view-0/{number}", b"x" * 65536), TOKEN[:8] + number.to_bytes(8, "big")))
            if number % 100 == 99:
                for _ in range(100):
                    mad.recv()
        assert run.resident_bytes - before < 100 << 20
        with pytest.raises(ShoalError, match="the store is full"):
            honest.request(StoreSet("view-0/more", b"x" * 65536), PATIENCE_S)
