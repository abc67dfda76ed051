"""What every way of the bulk transport promises: shared memory, TCP authenticated, TCP encrypted."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bulk_cases import DEADLINE_S, KEYS, NAMES, WAYS, connected, echo, eventually, serving

from shoal.comm.bulk import BadMessage, BulkClient, BulkServer, Message, Peer, Reply, RequestFailed, RequestTimeout
from shoal.comm.bulk.seal import CHUNK_BYTES
from shoal.core.errors import PeerLost

pytestmark = pytest.mark.contract
SIZES = (0, 1, 4096, 4097, 100_000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7, 32 << 20)


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Desk:
    """A handler that does what the head says, and remembers."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.kept: list[Any] = []
        self.waiting: list[tuple[Message, Reply]] = []
        self.server: BulkServer | None = None
        self.threads: set[int] = set()

    def __call__(self, peer: Peer, message: Message, reply: Reply) -> None:
        self.threads.add(threading.get_ident())
        do = message.head.get("do", "echo")
        self.seen.append(message.head.get("number"))
        if do == "echo":
            echo(peer, message, reply)
        elif do == "fail":
            raise ValueError("no such thing")
        elif do == "keep":
            self.kept.extend(message.arrays)
            reply(Message({}))
        elif do == "wait":
            self.waiting.append((message, reply))
        elif do == "answer all, the last one first":
            while self.waiting:
                late, late_reply = self.waiting.pop()
                late_reply(Message(late.head, late.arrays))
            reply(Message({}))
        elif do == "later":
            assert self.server is not None
            self.server.later(0.01, lambda: reply(Message({"late": True}, message.arrays)))
        elif do == "twice":
            reply(Message({"first": True}))
            reply(Message({"second": True}))
        elif do == "buffer":
            memory = peer.buffer(int(message.head["nbytes"]))
            memory[:] = 7
            reply(Message({}, [memory]))
        elif do == "frozen":
            live = np.arange(message.head["count"])
            reply(Message({}, [live], freeze=True))
            live[:] = -1


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def server(desk: Desk) -> Iterator[BulkServer]:
    with serving(desk) as running:
        desk.server = running
        yield running


@pytest.fixture
def client(server: BulkServer, way: str) -> Iterator[BulkClient]:
    with connected(server.addresses[0], way, name="worker 3") as ready:
        assert ready.way == NAMES[way]
        yield ready


def test_arrays_of_every_size_come_back_as_they_were(client: BulkClient) -> None:
    source = np.random.default_rng(0).integers(0, 256, max(SIZES), dtype=np.uint8)
    for size in SIZES:
        answer = client.request(Message({"size": size}, [source[:size]]), DEADLINE_S)
        assert answer.head == {"size": size}
        np.testing.assert_array_equal(answer.arrays[0], source[:size])


def test_types_shapes_and_heads_survive(client: BulkClient) -> None:
    arrays = [
        np.array(3.5),
        np.zeros((0, 4), np.float16),
        np.arange(24, dtype=">i8").reshape(2, 3, 4),
        np.array([True, False, True]),
        np.arange(6, dtype=np.complex128),
        np.arange(20_000, dtype=np.float32).reshape(100, 200)[::2, ::-1],  # not contiguous
        np.asfortranarray(np.arange(50_000, dtype=np.int16).reshape(50, 1000)),
    ]
    arrays[0].flags.writeable = False
    head = {"text": "grüße", "bytes": b"\0\xff", "list": [1, 2.5, None, {"deep": [True]}], "map": {1: "one"}}
    answer = client.request(Message(head, arrays), DEADLINE_S)
    assert answer.head == head
    for sent, came in zip(arrays, answer.arrays, strict=True):
        assert (came.dtype, came.shape) == (sent.dtype, sent.shape)
        np.testing.assert_array_equal(came, sent)
        assert came.flags.writeable


def test_many_arrays_in_one_message(client: BulkClient) -> None:
    arrays = [np.full(index * 37 % 9000, index, np.int32) for index in range(500)]
    answer = client.request(Message({}, arrays), DEADLINE_S)
    assert len(answer.arrays) == len(arrays)
    assert all(np.array_equal(sent, came) for sent, came in zip(arrays, answer.arrays, strict=True))


def test_requests_are_pipelined_and_handled_in_order(client: BulkClient, desk: Desk) -> None:
    sizes = itertools.cycle((0, 10, 5_000, 50_000, 1))
    futures = [client.submit(Message({"number": n}, [np.full(next(sizes), n % 100)])) for n in range(200)]
    for number, future in enumerate(futures):
        answer = future.result(DEADLINE_S)
        assert answer.head == {"number": number}
        assert (answer.arrays[0] == number % 100).all()
    assert desk.seen == list(range(200))
    assert len(desk.threads) == 1


def test_answers_may_be_given_later_and_in_any_order(client: BulkClient) -> None:
    waiting = [client.submit(Message({"do": "wait", "number": n}, [np.full(n * 1000, n)])) for n in range(20)]
    late = client.submit(Message({"do": "later"}, [np.arange(100_000)]))
    assert late.result(DEADLINE_S).head == {"late": True}
    assert not any(future.done() for future in waiting)
    client.request(Message({"do": "answer all, the last one first"}), DEADLINE_S)
    for number, future in enumerate(waiting):
        assert (future.result(DEADLINE_S).arrays[0] == number).all()


def test_both_sides_send_much_at_once(client: BulkClient) -> None:
    big = np.arange(600_000)
    futures = [client.submit(Message({"number": n}, [big + n])) for n in range(6)]
    for number, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(DEADLINE_S).arrays[0], big + number)


def test_several_threads_share_a_client(client: BulkClient) -> None:
    wrong: list[Any] = []

    def work(name: int) -> None:
        for turn in range(30):
            array = np.full(turn * 3000, name)
            answer = client.request(Message({"name": name, "turn": turn}, [array]), DEADLINE_S)
            if answer.head != {"name": name, "turn": turn} or not np.array_equal(answer.arrays[0], array):
                wrong.append((name, turn))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_failure_of_the_handler_reaches_who_asked(client: BulkClient, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RequestFailed, match="no such thing") as failure:
        client.request(Message({"do": "fail"}), DEADLINE_S)
    assert failure.value.kind == "ValueError"
    assert client.request(Message({"do": "echo"}), DEADLINE_S).head == {"do": "echo"}


def test_only_the_first_answer_counts(client: BulkClient, caplog: pytest.LogCaptureFixture) -> None:
    assert client.request(Message({"do": "twice"}), DEADLINE_S).head == {"first": True}
    assert client.request(Message({}), DEADLINE_S).head == {}


def test_what_was_received_stays_as_long_as_someone_looks_at_it(client: BulkClient, desk: Desk) -> None:
    kept_here = []
    for number in range(6):
        client.request(Message({"do": "keep"}, [np.full(200_000, number), np.full(10, number)]), DEADLINE_S)
        kept_here.append(client.request(Message({}, [np.full(150_000, number)]), DEADLINE_S).arrays[0][5:10])
    assert [int(array[0]) for array in desk.kept] == [number // 2 for number in range(12)]
    assert all((array == array[0]).all() for array in desk.kept)
    assert [list(view) for view in kept_here] == [[number] * 5 for number in range(6)]


def test_memory_is_used_again(client: BulkClient) -> None:
    addresses = set()
    for _ in range(20):
        array = client.request(Message({}, [np.ones(100_000)]), DEADLINE_S).arrays[0]
        addresses.add(array.__array_interface__["data"][0])
        del array
    assert len(addresses) <= 4


def test_answers_can_go_into_arrays_that_are_there(client: BulkClient) -> None:
    places = [np.zeros(400_000), None, np.zeros(3)]
    sent = [np.arange(400_000.0), np.arange(5), np.arange(3.0)]
    answer = client.request(Message({}, sent), DEADLINE_S, into=places)
    assert answer.arrays[0] is places[0]
    assert answer.arrays[2] is places[2]
    for came, array in zip(answer.arrays, sent, strict=True):
        np.testing.assert_array_equal(came, array)
    with pytest.raises(BadMessage, match="do not go into"):
        client.request(Message({}, sent), DEADLINE_S, into=[np.zeros(400_000), None, np.zeros(4)])
    with pytest.raises(BadMessage, match="do not go into"):
        client.request(Message({}, sent), DEADLINE_S, into=[None])
    assert client.request(Message({"no": "arrays"}), DEADLINE_S, into=places).head == {"no": "arrays"}


def test_arrays_in_buffers_are_sent_like_others(client: BulkClient) -> None:
    for number in range(5):
        memory = client.buffer(800_000)
        halves = memory[:400_000].view(np.float32), memory[400_000:].view(np.int64)
        halves[0][:] = number
        halves[1][:] = -number
        other = np.full(77_000, number)
        answer = client.request(Message({}, [halves[1], other, halves[0]]), DEADLINE_S)
        assert (answer.arrays[0] == -number).all()
        assert (answer.arrays[1] == number).all()
        assert (answer.arrays[2] == number).all()
    assert (client.request(Message({"do": "buffer", "nbytes": 300_000}), DEADLINE_S).arrays[0] == 7).all()


def test_what_the_server_sends_back_over_shared_memory_is_not_copied(client: BulkClient) -> None:
    kept = []
    for number in range(5):
        memory = client.buffer(400_000).view(np.float32)
        memory[:] = number
        address = memory.__array_interface__["data"][0]
        (came,) = client.request(Message({}, [memory]), DEADLINE_S).arrays
        assert (came.__array_interface__["data"][0] == address) == (client.way == "shm")
        del memory
        kept.append(came)
    for number, came in enumerate(kept):
        assert (came == number).all()


def test_frozen_messages_may_change_after_they_were_handed_over(client: BulkClient) -> None:
    assert (client.request(Message({"do": "frozen", "count": 300_000}), DEADLINE_S).arrays[0] >= 0).all()
    live = np.arange(400_000)
    future = client.submit(Message({}, [live], freeze=True))
    live[:] = -1
    np.testing.assert_array_equal(future.result(DEADLINE_S).arrays[0], np.arange(400_000))


def test_no_answer_ends_with_the_deadline_and_the_connection_stands(client: BulkClient) -> None:
    with pytest.raises(RequestTimeout, match="'wait'"):
        client.request(Message({"do": "wait"}), 0.05)
    client.submit(Message({"do": "wait"}))
    with pytest.raises(RequestTimeout):
        client.request(Message({"do": "wait"}), 0.05)
    client.request(Message({"do": "answer all, the last one first"}), DEADLINE_S)
    assert client.request(Message({"x": 1}), DEADLINE_S).head == {"x": 1}


@pytest.mark.parametrize(
    "message",
    [
        Message({"head": object()}),
        Message({"head": b"x" * (1 << 20)}),
        Message({}, [np.array(["text"])]),
        Message({}, [np.array([object()])]),
        Message({}, [np.zeros(2, "i4,f8")]),
        Message({}, [[1, 2]]),  # type: ignore[list-item]
    ],
    ids=["head", "long head", "text", "objects", "records", "list"],
)
def test_what_cannot_be_sent_is_refused_where_it_is_asked_for(client: BulkClient, message: Message) -> None:
    with pytest.raises(BadMessage):
        client.submit(message)
    with pytest.raises(BadMessage):
        client.request(message, DEADLINE_S)
    assert client.request(Message({"x": 1}), DEADLINE_S).head == {"x": 1}


def test_after_the_end_of_the_server_requests_fail_at_once(way: str) -> None:
    lost = threading.Event()
    desk = Desk()
    with serving(desk) as server, connected(server.addresses[0], way, on_lost=lost.set) as client:
        future = client.submit(Message({"do": "wait"}))
        eventually(lambda: bool(desk.waiting), "the request has arrived")
        server.close()
        with pytest.raises(PeerLost):
            future.result(DEADLINE_S)
        assert lost.wait(DEADLINE_S)
        assert not client.connected
        with pytest.raises(PeerLost):
            client.submit(Message({})).result(0)
        with pytest.raises(PeerLost):
            client.request(Message({}), DEADLINE_S)
        with pytest.raises(PeerLost):
            client.reconnect().result(DEADLINE_S)


def test_the_end_of_an_idle_connection_is_seen(way: str) -> None:
    lost = threading.Event()
    with serving() as server, connected(server.addresses[0], way, on_lost=lost.set) as client:
        client.request(Message({}), DEADLINE_S)
        server.close()
        assert lost.wait(DEADLINE_S)


def test_a_client_that_goes_is_noticed_and_late_answers_are_thrown_away(way: str) -> None:
    gone: list[str] = []
    desk = Desk()
    with serving(desk, on_gone=lambda peer: gone.append(peer.name)) as server:
        with connected(server.addresses[0], way, name="worker 9") as client:
            client.submit(Message({"do": "wait"}, [np.ones(100_000)]))
            eventually(lambda: bool(desk.waiting), "the request has arrived")
        eventually(lambda: gone == ["worker 9"], "the end was noticed")
        message, reply = desk.waiting.pop()
        answered = threading.Event()
        server.call(lambda: (reply(Message({}, message.arrays)), answered.set())[-1])
        assert answered.wait(DEADLINE_S)
        with connected(server.addresses[0], way) as other:
            assert other.request(Message({"x": 2}), DEADLINE_S).head == {"x": 2}


def test_reconnecting_fails_what_was_under_way_and_goes_on(client: BulkClient, desk: Desk) -> None:
    old = client.submit(Message({"do": "wait"}))
    again = client.reconnect()
    with pytest.raises(PeerLost):
        old.result(DEADLINE_S)
    waits_for_it = client.submit(Message({"x": 3}, [np.arange(100_000)]))
    again.result(DEADLINE_S)
    assert waits_for_it.result(DEADLINE_S).head == {"x": 3}


def test_a_callback_may_reconnect_and_submit_again(way: str) -> None:
    second: list[Any] = []
    desk = Desk()
    with serving(desk) as server, connected(server.addresses[0], way) as client:

        def again(future: object) -> None:
            if not second:
                client.reconnect()
                second.append(client.submit(Message({"x": 4})))

        futures = [client.submit(Message({"do": "wait"})) for _ in range(5)]
        for future in futures:
            future.add_done_callback(again)
        eventually(lambda: len(desk.waiting) == 5, "all have arrived")
        server.call(lambda: server._lose(next(iter(server._peers)), "the test"))
        for future in futures:
            with pytest.raises(PeerLost):
                future.result(DEADLINE_S)
        eventually(lambda: bool(second), "the callback ran")
        assert second[0].result(DEADLINE_S).head == {"x": 4}


def test_the_receiver_may_offer_memory(way: str) -> None:
    scratch = np.zeros((1000, 100))
    asked: list[Any] = []

    def place(peer: Peer, head: Any, specs: Any) -> list[Any]:
        asked.append([(spec.dtype, spec.shape) for spec in specs])
        return [scratch, scratch]  # the second does not fit, and is not used

    seen: list[bool] = []

    def handler(peer: Peer, message: Message, reply: Reply) -> None:
        seen.extend([message.arrays[0] is scratch, message.arrays[1] is scratch])
        reply(Message({}, [message.arrays[1].copy()]))

    with serving(handler, place=place) as server, connected(server.addresses[0], way) as client:
        sent = np.random.default_rng(1).normal(size=(1000, 100))
        client.request(Message({}, [sent, np.arange(10)]), DEADLINE_S)
    np.testing.assert_array_equal(scratch, sent)
    assert asked[0] == [(np.dtype("f8"), (1000, 100)), (np.dtype("i8"), (10,))]
    assert seen == [True, False]


def test_traffic_is_counted(client: BulkClient, server: BulkServer) -> None:
    before = client.bytes_sent, client.bytes_received
    client.request(Message({}, [np.ones(1_000_000, np.uint8)]), DEADLINE_S)
    for count in (client.bytes_sent - before[0], client.bytes_received - before[1]):
        assert 1_000_000 <= count < 1_010_000
    assert server.bytes_received >= 1_000_000


def test_several_clients_at_once_each_get_their_own(server: BulkServer) -> None:
    with (
        connected(server.addresses[0], "shm") as one,
        connected(server.addresses[0], "authenticated") as two,
        connected(server.addresses[0], "encrypted") as three,
    ):
        for turn in range(5):
            futures = [
                (who, client.submit(Message({"who": who}, [np.full(700_000 + turn, who)])))
                for who, client in enumerate((one, two, three))
            ]
            for who, future in futures:
                assert (future.result(DEADLINE_S).arrays[0] == who).all()


def test_a_server_without_a_thread_serves_in_the_callers_until_it_is_stopped() -> None:
    server = BulkServer("127.0.0.1:0", KEYS, echo, threaded=False)
    answers: list[Any] = []

    def ask() -> None:
        with connected(server.addresses[0]) as client:
            answers.append(client.request(Message({"x": 5}), DEADLINE_S).head)
        server.stop()

    thread = threading.Thread(target=ask)
    thread.start()
    server.run()
    thread.join(DEADLINE_S)
    server.close()
    server.close()
    assert answers == [{"x": 5}]


def test_a_client_that_does_not_wait_for_the_connection_sends_when_it_stands() -> None:
    with serving() as server:
        client = BulkClient(server.addresses[0], KEYS.client(), deadline_s=None)
        try:
            assert client.submit(Message({"x": 6})).result(DEADLINE_S).head == {"x": 6}
        finally:
            client.close()
            client.close()
        with pytest.raises(PeerLost, match="closed on this side"):
            client.submit(Message({})).result(0)


def test_shared_memory_comes_back_when_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.comm.bulk.memory.IDLE_S", 0.05)
    with serving() as server, connected(server.addresses[0]) as client:
        for _ in range(3):
            client.request(Message({}, [np.ones(500_000)]), DEADLINE_S)
        gc.collect()
        channel = client._driver.channel
        assert channel is not None
        assert channel._shared is not None
        lender, borrower = channel._shared.lender, channel._shared.borrower
        eventually(lambda: not lender._known and not borrower._maps, "all blocks are given back")
        assert client.request(Message({"x": 7}, [np.ones(500_000)]), DEADLINE_S).head == {"x": 7}
