"""Nobody gets in without the key, nothing gets through that was not sent: on the wire, at the doors, from within."""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from bulk_cases import (
    DEADLINE_S,
    KEYS,
    Wire,
    connected,
    deliver,
    eventually,
    flipped,
    same,
    serving,
)

from shoal.comm.bulk import BulkClient, BulkServer, EntryRefused, Message, Peer, Reply
from shoal.comm.bulk.desk import Desk, knock, read_answer
from shoal.comm.bulk.envelope import HEADER_BYTES, STREAMED, Kind, pack_envelope, pack_head, pack_header
from shoal.comm.bulk.knock import Knocking
from shoal.comm.bulk.message import ArraySpec
from shoal.comm.bulk.outlet import Outgoing
from shoal.comm.bulk.seal import CHUNK_BYTES, NoSeal, make_seal
from shoal.comm.curve import knocking_dealer
from shoal.comm.keys import ClientKeys, RunKeys
from shoal.core.errors import PeerLost, UserError

SMALL = [Message({"n": n}, [np.arange(n + 3)]) for n in range(3)]
LARGE = [Message({"n": 0}, [np.arange(CHUNK_BYTES // 4 + 1000, dtype=np.int32)]), Message({"n": 1})]
OTHER = RunKeys.make()
GROWTH_BYTES = 20 << 20


@pytest.fixture(params=[False, True], ids=["authenticated", "encrypted"])
def encrypted(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def small(encrypted: bool) -> Wire:
    return Wire(SMALL, encrypted)


@pytest.fixture
def large(encrypted: bool) -> Wire:
    return Wire(LARGE, encrypted)


class Seen:
    """A handler that remembers what reached it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, peer: Peer, message: Message, reply: Reply) -> None:
        self.messages.append(message)
        reply(Message(message.head, message.arrays))


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def server(seen: Seen) -> Iterator[BulkServer]:
    with serving(seen) as running:
        yield running


def check_it_serves(server: BulkServer) -> None:
    with connected(server.addresses[0], "encrypted") as client:
        assert client.request(Message({"well": True}, [np.arange(200_000)]), DEADLINE_S).head == {"well": True}


def resident_bytes() -> int:
    """Of this process, in which server and clients are."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def door_port(server: BulkServer) -> int:
    return int(server.addresses[0].rpartition(":")[2])


def stream_port(server: BulkServer) -> int:
    return next(int(one.getsockname()[1]) for one in server._entrance._listeners if one.family == socket.AF_INET)


# on the wire


def test_what_was_sent_arrives(small: Wire, large: Wire) -> None:
    for wire, messages in ((small, SMALL), (large, LARGE)):
        passed, end = wire.deliver(b"".join(wire.frames))
        assert end == ""
        assert all(same(came, sent) for came, sent in zip(passed, messages, strict=True))


def test_a_flipped_bit_anywhere_ends_the_connection(small: Wire) -> None:
    frame = small.frames[0]
    for position in range(len(frame)):
        passed, end = small.deliver(flipped(frame, position, position % 8) + small.frames[1] + small.frames[2] * 2)
        assert passed == [], position
        # a longer length in a header only makes it wait for bytes that do not come
        assert end or position < HEADER_BYTES, position


def test_a_flipped_bit_in_an_array_is_found(large: Wire) -> None:
    frame = large.frames[0]
    edges = [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 20, len(frame) - 17, len(frame) - 1]
    for position in [*edges, *random.Random(0).sample(range(200, len(frame)), 10)]:
        passed, end = large.deliver(flipped(frame, position) + large.frames[1])
        assert passed == []
        assert "not authentic" in end


def test_replayed_left_out_and_swapped_messages_are_refused(small: Wire) -> None:
    first, second, third = small.frames
    for data, reach in (
        (first + first, 1),
        (first + second + first, 2),
        (second, 0),
        (first + third, 1),
        (second + first + third, 0),
    ):
        passed, end = small.deliver(data)
        assert "not authentic" in end
        assert len(passed) == reach


def test_a_session_cannot_be_replayed_to_another(small: Wire) -> None:
    passed, end = deliver(b"".join(small.frames), make_seal(bytes(32), "client to server", small.encrypted))
    assert (passed, "not authentic" in end) == ([], True)
    passed, end = small.deliver(small.frames[0], direction="server to client")  # sent back to where it came from
    assert (passed, "not authentic" in end) == ([], True)


def test_a_truncated_message_is_never_passed_on(small: Wire, large: Wire) -> None:
    for length in range(len(small.frames[0])):
        assert small.deliver(small.frames[0][:length]) == ([], "")
    frame = large.frames[0]
    for length in (len(frame) - 1, len(frame) - 16, len(frame) - 17, CHUNK_BYTES + 100, len(frame) // 2):
        assert large.deliver(frame[:length]) == ([], "")
        passed, end = large.deliver(frame[:length] + large.frames[1] * 20_000)  # others do not fill the gap
        assert passed == []
        assert "not authentic" in end


def test_encrypted_means_unreadable() -> None:
    secret = Message({"password": "correct horse battery staple"}, [np.frombuffer(b"sesame" * 20_000, np.uint8)])
    assert b"correct horse" in Wire([secret], False).frames[0]
    assert b"correct horse" not in Wire([secret], True).frames[0]
    assert b"sesamesesame" not in Wire([secret], True).frames[0]


class Meddler(threading.Thread):
    """Sits between a client and the server's TCP port, and changes one byte that the client sends."""

    def __init__(self, port: int, position: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target, self._position = port, position
        self.start()

    def run(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._target))
        back = threading.Thread(target=self._pass, args=(far, near, -1), daemon=True)
        back.start()
        self._pass(near, far, self._position)
        back.join(DEADLINE_S)
        for sock in (near, far, self._listener):
            sock.close()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, position: int) -> None:
        count = 0
        try:
            while data := source.recv(65536):
                if count <= position < count + len(data):
                    data = flipped(data, position - count)
                count += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for sock in (source, target):
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


def test_someone_in_the_middle_gets_nothing_through(
    server: BulkServer, seen: Seen, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddler = Meddler(stream_port(server), 500_000)
    real = Knocking._open
    monkeypatch.setattr(Knocking, "_open", lambda self, local, port: real(self, local, meddler.port))
    with connected(server.addresses[0], "encrypted" if encrypted else "authenticated") as client:
        assert client.request(Message({"n": 1}), DEADLINE_S).head == {"n": 1}
        with pytest.raises(PeerLost):
            client.request(Message({"n": 2}, [np.ones(1_000_000, np.uint8)]), DEADLINE_S)
    monkeypatch.undo()
    meddler.join(DEADLINE_S)
    assert [message.head["n"] for message in seen.messages] == [1]
    check_it_serves(server)


# at the doors


@pytest.mark.parametrize(
    "keys",
    [
        OTHER.client(),
        dataclasses.replace(KEYS.client(), client_public=OTHER.client_public, client_secret=OTHER.client_secret),
        dataclasses.replace(KEYS.client(), server_public=OTHER.server_public),
    ],
    ids=["another run", "another client key", "another server key"],
)
def test_a_wrong_key_is_refused_and_said_so(server: BulkServer, seen: Seen, keys: ClientKeys) -> None:
    with pytest.raises(EntryRefused, match="another key"):
        BulkClient(server.addresses[0], keys, deadline_s=DEADLINE_S)
    late = BulkClient(server.addresses[0], keys, deadline_s=None)
    with pytest.raises(EntryRefused):
        late.submit(Message({})).result(DEADLINE_S)
    with pytest.raises(UserError):
        late.reconnect().result(DEADLINE_S)
    late.close()
    assert not seen.messages
    check_it_serves(server)


def test_without_any_key_the_door_stays_shut(server: BulkServer, seen: Seen) -> None:
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(f"tcp://{server.addresses[0]}")
    for _ in range(50):
        dealer.send(knock("", "stranger", "auto", "off"))
    check_it_serves(server)
    assert not dealer.poll(0)
    context.destroy(linger=0)
    assert len(seen.messages) == 1


def test_nobody_listens_there_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        with pytest.raises(PeerLost, match="nobody listens"):
            BulkClient(f"127.0.0.1:{port}", KEYS.client(), deadline_s=DEADLINE_S)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:99999", "host:port", "a b:1", ":80"])
def test_an_address_that_is_none_is_a_users_mistake(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        BulkClient(address, KEYS.client())
    with pytest.raises(UserError, match="HOST:PORT"):
        BulkServer(address, KEYS, Seen())


def test_a_session_is_good_once_and_only_on_its_own_socket() -> None:
    desk = Desk("auto", "here", b"\0name")

    def session(way: str, host: str = "here") -> Any:
        answer = desk.answer(knock(host, "me", way, "auto"), 5, 0.0)
        assert answer is not None
        found = read_answer(answer, "me")
        return found if isinstance(found, str) else found[0]

    first = session("tcp")
    assert desk.admit(first.greeting(), "shm", 0.0) is None
    assert desk.admit(first.id + bytes(32), "tcp", 0.0) is None
    assert desk.admit(first.greeting()[:-1], "tcp", 0.0) is None
    assert desk.admit(bytes(48), "tcp", 0.0) is None
    assert desk.admit(first.greeting(), "tcp", 0.0) == first
    assert desk.admit(first.greeting(), "tcp", 0.0) is None
    assert desk.admit(session("shm").greeting(), "shm", 1000.0) is None  # too late
    assert (first.way, first.encrypted) == ("tcp", False)
    assert session("auto").way == "shm"
    elsewhere = session("auto", "elsewhere")
    assert (elsewhere.way, elsewhere.encrypted) == ("tcp", True)
    assert "another host" in session("shm", "elsewhere")


def test_a_flood_of_garbage_at_every_port_changes_nothing(server: BulkServer, seen: Seen) -> None:
    draw = random.Random(7)
    stray = connected(server.addresses[0], "shm")
    client = stray.__enter__()
    # at the sockets for arrays: strangers, some of whom fall silent
    silent = []
    for number in range(600):
        sock = socket.create_connection(("127.0.0.1", stream_port(server)))
        sock.sendall(draw.randbytes(draw.choice((1, 47, 48, 200))))
        if number % 4 == 0:
            silent.append(sock)
        else:
            sock.close()
    # at the door, without and with the key
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", door_port(server))) as sock:
            sock.sendall(draw.randbytes(draw.choice((1, 10, 64, 300))))
    context: zmq.Context[Any] = zmq.Context()
    dealer = knocking_dealer(context, KEYS.client(), 1 << 20)
    dealer.connect(f"tcp://{server.addresses[0]}")
    good = knock("x", "me", "tcp", "on")
    used = 0
    for count in (2_000, 60_000):
        used = resident_bytes()  # after some of it
        for _ in range(count):
            garbage = draw.choice((draw.randbytes(draw.randrange(80)), flipped(good, draw.randrange(len(good)))))
            if Desk("auto", "here", None).answer(garbage, 5, 0.0) is None:  # else it is a knock of another name
                dealer.send_multipart([garbage] * draw.choice((1, 1, 1, 2)))
        dealer.send(good)
        assert dealer.poll(DEADLINE_S * 1000)
        dealer.recv_multipart()
    assert resident_bytes() - used < GROWTH_BYTES
    context.destroy(linger=0)
    assert client.request(Message({"still": "here"}), DEADLINE_S).head == {"still": "here"}
    assert [message.head for message in seen.messages] == [{"still": "here"}]
    for sock in silent:
        sock.close()
    check_it_serves(server)
    eventually(lambda: not server._entrance._strangers, "strangers are turned away")
    stray.__exit__(None, None, None)


# from within: members that send nonsense


def frame(kind: int, body: bytes, envelope_bytes: int | None = None, inline_bytes: int = 0) -> bytes:
    length = len(body) if envelope_bytes is None else envelope_bytes
    return struct.pack("!IIQB3x", length, inline_bytes, 1, kind) + body


NONSENSE = {
    "no msgpack": b"\xc1\xc1",
    "no list": msgpack.packb(3),
    "too short": msgpack.packb([{}, []]),
    "head is a list": msgpack.packb([[], [], None]),
    "arrays is a map": msgpack.packb([{}, {}, None]),
    "objects": msgpack.packb([{}, [["|O", [1], 1]], None]),
    "records": msgpack.packb([{}, [["i4,i4", [1], 1]], None]),
    "text": msgpack.packb([{}, [["<U4", [1], 1]], None]),
    "no dtype": msgpack.packb([{}, [["<f3", [1], 1]], None]),
    "long double of nowhere": msgpack.packb([{}, [["<i16", [1], 1]], None]),
    "negative": msgpack.packb([{}, [["<f4", [-1], 1]], None]),
    "float shape": msgpack.packb([{}, [["<f4", [1.5], 1]], None]),
    "nested shape": msgpack.packb([{}, [["<f4", [[1]], 1]], None]),
    "huge": msgpack.packb([{}, [["<f4", [1 << 60], 1]], None]),
    "huge product": msgpack.packb([{}, [["<f4", [1 << 30, 1 << 30], 1]], None]),
    "huge sum": msgpack.packb([{}, [["|u1", [1 << 36], 1]] * 2, None]),
    "many dimensions": msgpack.packb([{}, [["<f4", [1] * 33, 1]], None]),
    "no place": msgpack.packb([{}, [["<f4", [1], 7]], None]),
    "missing bytes": msgpack.packb([{}, [["<f4", [1000], 0]], None]),
    "blocks over TCP": msgpack.packb([{}, [["<f4", [1], [0, 0]]], None]),
    "sent back over TCP": msgpack.packb([{}, [["<f4", [1], [0, 0, True]]], None]),
    "sent back by no mark": msgpack.packb([{}, [["<f4", [1], [0, 0, 1]]], None]),
    "fresh over TCP": msgpack.packb([{}, [], [[], [], [[0, 4096]]]]),
    "released over TCP": msgpack.packb([{}, [], [[1], [], []]]),
    "blocks of nonsense": msgpack.packb([{}, [], [1, 2, 3]]),
    "deep": b"\x91" * 5000 + b"\xc0",
}


@pytest.mark.parametrize("name", NONSENSE)
def test_a_message_of_the_wrong_form_ends_the_connection(name: str) -> None:
    passed, end = deliver(frame(Kind.REQUEST, NONSENSE[name]), NoSeal())
    assert passed == []
    assert "nonsense" in end


def test_headers_beyond_the_limits_are_refused_before_anything_is_allocated() -> None:
    for header in (
        struct.pack("!IIQB3x", 1 << 31, 0, 1, Kind.REQUEST),
        struct.pack("!IIQB3x", 10, 1 << 31, 1, Kind.REQUEST),
        struct.pack("!IIQB3x", 10, 0, 1, 99),
    ):
        assert "nonsense" in deliver(header, NoSeal())[1]


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_fuzzed_messages_never_do_more_than_end_the_connection(kind: Kind) -> None:
    draw = random.Random(int(kind))
    head = pack_head({"do": "push", "keys": ["a", "b"], "deep": [{"x": [1, 2.0, None]}]})
    arrays = [(ArraySpec.parse("<f4", [3, 5]), 0), (ArraySpec.parse("|u1", [40]), STREAMED)]
    envelope = pack_envelope(head, arrays)
    good = pack_header(kind, 3, len(envelope), 60) + envelope + bytes(100)
    assert len(deliver(good, NoSeal())[0]) == (0 if kind is Kind.NOTICE else 1)
    used = 0
    for number in range(10_000):
        if number == 1_000:
            used = resident_bytes()
        data = bytearray(good)
        for _ in range(draw.choice((1, 1, 2, 5))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        if draw.random() < 0.2:
            data = data[: draw.randrange(len(data))]
        passed, _ = deliver(bytes(data), NoSeal())  # raises nothing
        assert len(passed) <= 2
    assert resident_bytes() - used < GROWTH_BYTES


@pytest.mark.parametrize("way", ["shm", "authenticated", "encrypted"])
def test_a_member_that_sends_nonsense_loses_its_own_connection_only(
    server: BulkServer, seen: Seen, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(server.addresses[0], "encrypted") as other:
        for nonsense in (NONSENSE["objects"], NONSENSE["no msgpack"], msgpack.packb([{}, [], [[77], [], []]])):
            with connected(server.addresses[0], way) as client, monkeypatch.context() as patch:
                patch.setattr("shoal.comm.bulk.outlet.pack_envelope", lambda *_, bad=nonsense: bad)
                with pytest.raises(PeerLost):
                    client.request(Message({}), DEADLINE_S)
        assert other.request(Message({"n": 1}), DEADLINE_S).head == {"n": 1}
    assert [message.head for message in seen.messages] == [{"n": 1}]


def test_answers_are_not_accepted_where_requests_are_expected(server: BulkServer, seen: Seen) -> None:
    with connected(server.addresses[0]) as client:
        client._driver.send(Outgoing(Kind.ANSWER, 0, Message({})))
        eventually(lambda: not client.connected, "the server has ended it")
    assert not seen.messages


# where it listens


def test_on_loopback_nothing_listens_elsewhere(server: BulkServer) -> None:
    ours = {door_port(server), stream_port(server)}
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(port, 16) in ours:
                listening.add((table, address, int(port, 16)))
    assert listening == {("/proc/net/tcp", "0100007F", port) for port in ours}


def test_an_address_in_use_is_said(server: BulkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.comm.curve._BIND_PATIENCE_S", 0.0)
    with pytest.raises(UserError, match="cannot listen"):
        BulkServer(server.addresses[0], KEYS, Seen())
    with pytest.raises(UserError, match="cannot listen"):
        BulkServer("192.0.2.1:0", KEYS, Seen())
