"""The transport between real processes: killed, frozen, restarted, forked; and what is left afterwards."""

from __future__ import annotations

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bulk_cases import (
    DEADLINE_S,
    KEYS,
    WAYS,
    ServerProcess,
    connected,
    descriptors,
    eventually,
    serving,
)

from shoal.comm.bulk import BulkClient, Message, RequestTimeout
from shoal.core.errors import PeerLost


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_killed_server_is_noticed_at_once_and_its_successor_found(way: str) -> None:
    lost = threading.Event()
    with ServerProcess() as server, connected(server.address, way, on_lost=lost.set) as client:
        kept = client.request(Message({}, [np.arange(300_000)]), DEADLINE_S).arrays[0]
        waiting = [client.submit(Message({"do": "keep silent"}, [np.ones(1000)])) for _ in range(3)]
        big = client.submit(Message({"do": "keep silent"}, [np.ones(4_000_000)]))  # killed in the middle of it, perhaps
        server.kill()
        for future in [*waiting, big]:
            with pytest.raises(PeerLost):
                future.result(DEADLINE_S)
        assert lost.wait(DEADLINE_S)
        with pytest.raises(PeerLost):
            client.request(Message({}), DEADLINE_S)
        with pytest.raises(PeerLost):
            client.reconnect().result(DEADLINE_S)
        np.testing.assert_array_equal(kept, np.arange(300_000))  # what was received stays
        with ServerProcess(listen=server.address):  # the same port, right away
            client.reconnect().result(DEADLINE_S)
            assert client.request(Message({"x": 1}), DEADLINE_S).head["x"] == 1


def test_a_frozen_server_ends_a_request_by_its_deadline_only(way: str) -> None:
    with ServerProcess() as server, connected(server.address, way) as client:
        client.request(Message({}), DEADLINE_S)
        server.freeze()
        later = client.submit(Message({"n": 1}, [np.ones(3_000_000)]))  # more than any socket takes: must not block
        with pytest.raises(RequestTimeout, match="the server at"):
            client.request(Message({"n": 2}), 0.1)
        assert not later.done()
        server.go_on()
        assert later.result(DEADLINE_S).head["n"] == 1
        assert client.request(Message({"n": 3}), DEADLINE_S).head["n"] == 3


def test_a_frozen_door_ends_by_the_deadline() -> None:
    with ServerProcess() as server:
        server.freeze()
        with pytest.raises(RequestTimeout, match="connection"):
            BulkClient(server.address, KEYS.client(), deadline_s=0.3)


def test_a_killed_client_is_noticed_though_its_child_lives_on(way: str) -> None:
    """A forked child inherits all descriptors; the connection must end with its owner all the same."""
    gone: list[str] = []
    with serving(on_gone=lambda peer: gone.append(peer.name)) as server:
        told, tell = os.pipe()
        stay, _release = os.pipe()
        owner = os.fork()
        if owner == 0:  # only sockets and threads of its own are used here
            try:
                kind, encrypt = WAYS[way]
                client = BulkClient(server.addresses[0], KEYS.client(), name="owner", way=kind, encrypt=encrypt)  # type: ignore[arg-type]
                client.request(Message({}, [np.arange(100_000)]), DEADLINE_S)
                os.close(_release)
                child = os.fork()
                if child == 0:
                    os.read(stay, 1)  # until the test is over
                    os._exit(0)
                os.write(tell, b"ready")
                threading.Event().wait()
            finally:
                os._exit(1)
        try:
            assert os.read(told, 5) == b"ready"
            os.kill(owner, signal.SIGKILL)
            os.waitpid(owner, 0)
            eventually(lambda: gone == ["owner"], "the end of the client was noticed")
        finally:
            for descriptor in (told, tell, stay, _release):
                os.close(descriptor)


def test_a_client_and_a_server_can_be_made_in_a_forked_child() -> None:
    with serving() as server, connected(server.addresses[0]) as mine:
        mine.request(Message({}), DEADLINE_S)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with serving() as own, connected(own.addresses[0]) as near, connected(server.addresses[0]) as far:
                    near.request(Message({}, [np.arange(100_000)]), DEADLINE_S)
                    far.request(Message({}, [np.arange(100_000)]), DEADLINE_S)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert mine.request(Message({"x": 1}, [np.arange(100_000)]), DEADLINE_S).head == {"x": 1}


def test_a_hundred_connections_leave_no_descriptor_thread_or_memory(way: str) -> None:
    count = 34  # of each way: a hundred and two in all
    with serving() as server:
        with connected(server.addresses[0], way) as client:  # whatever is opened once is open now
            client.request(Message({}, [np.ones(50_000)]), DEADLINE_S)
        eventually(lambda: not server._peers, "the server has seen it go")
        files, threads = descriptors(), threading.active_count()
        maps = shared_maps()

        def connect(number: int) -> None:
            with connected(server.addresses[0], way) as client:
                answer = client.request(Message({}, [np.full(50_000, number)]), DEADLINE_S)
                assert (answer.arrays[0] == number).all()

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(connect, range(count)))
        eventually(lambda: not server._peers, "the server has seen all go")
        eventually(lambda: descriptors() <= files, f"descriptors are back to {files}")
        eventually(lambda: threading.active_count() <= threads, f"threads are back to {threads}")
        eventually(lambda: shared_maps() <= maps, "shared memory is unmapped")


def shared_maps() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:shoal-bulk")


def test_a_full_socket_of_one_client_does_not_stop_the_others() -> None:
    """One asks for much and never reads; another is served meanwhile."""
    with (
        serving() as server,
        connected(server.addresses[0], "authenticated") as greedy,
        connected(server.addresses[0]) as other,
    ):
        channel = greedy._driver.channel
        assert channel is not None
        channel.fill = lambda: None  # type: ignore[method-assign]
        futures = [greedy.submit(Message({}, [np.ones(1_000_000)])) for _ in range(4)]
        for number in range(20):
            answer = other.request(Message({"n": number}, [np.ones(100_000)]), DEADLINE_S)
            assert answer.head == {"n": number}
        assert not any(future.done() for future in futures)


def test_sockets_on_the_wire_are_told_apart_from_local_ones(way: str) -> None:
    families = set()
    with serving() as server, connected(server.addresses[0], way) as client:
        client.request(Message({}), DEADLINE_S)
        for channel in server._peers.values():
            families.add(channel._socket.family)
    assert families == {socket.AF_UNIX if way == "shm" else socket.AF_INET}
