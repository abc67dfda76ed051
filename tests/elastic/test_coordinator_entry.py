"""No one gets in: whoever comes to the coordinator's port without the run's key, and what becomes of it."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import zmq
from elastic_cases import status
from elastic_messages import TOKEN
from elastic_process import BEAT_S, PATIENCE_S, Coordination, coordination, eventually, raw_socket
from zmq.utils.monitor import recv_monitor_message

from shoal.core.errors import UserError
from shoal.elastic.keys import ClientKeys, RunKeys
from shoal.elastic.link import Link
from shoal.elastic.messages import StoreAdd, StoreGet, encode
from shoal.elastic.process import CoordinatorSpec, serve

pytestmark = pytest.mark.ranks

_REFUSALS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_DISCONNECTED,
)


@pytest.fixture
def run() -> Iterator[Coordination]:
    with coordination() as one:
        yield one


@pytest.fixture
def member(run: Coordination) -> Iterator[Link]:
    """One that belongs to the run; at the end it is still served."""
    with run.link() as link:
        link.say(status("honest"))
        assert link.wait_until(lambda word: word.view, PATIENCE_S)
        link.say(status("honest", "in", 1))
        yield link
        assert link.request(StoreAdd("view-1/honest", 1), PATIENCE_S) == 1
        assert link.flush(PATIENCE_S)
        assert (link.word.broken, link.word.change, link.word.out) == (0, 0, "")
        assert [worker["key"] for worker in run.report()["workers"]] == ["honest"]


def _strangers(keys: RunKeys) -> dict[str, ClientKeys | None]:
    own, other = RunKeys.make(), keys.client()
    return {
        "no key": None,
        "keys of another run": own.client(),
        "the server's public key only": replace(own.client(), server_public=other.server_public),
        "all but the secret": replace(other, client_secret=own.client_secret),
        "the client's keys but not the server's": replace(other, server_public=own.server_public),
    }


@pytest.mark.parametrize("who", _strangers(RunKeys.make()))
def test_a_stranger_gets_no_connection(run: Coordination, member: Link, who: str) -> None:
    with raw_socket(run.address, _strangers(run.spec.keys)[who]) as stranger:
        events = stranger.get_monitor_socket()
        stranger.connect(run.address)
        stranger.send(encode(status("intruder"), TOKEN))

        def refused() -> bool:
            return bool(events.poll(100)) and recv_monitor_message(events)["event"] in _REFUSALS

        eventually(refused, "the refusal")
        assert not stranger.poll(0)
        stranger.disable_monitor()


def test_garbage_and_halves_of_greetings_on_the_port_do_no_harm(run: Coordination, member: Link) -> None:
    chance = random.Random(5)
    greeting = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
    port = run.spec.port
    held = []
    for number in range(150):
        peer = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        held.append(peer)
        noise = chance.randbytes(chance.randrange(1, 20_000))
        data = (noise, greeting[: chance.randrange(64)], greeting + noise, b"GET / HTTP/1.1\r\n\r\n" + noise)[
            number % 4
        ]
        try:
            peer.sendall(data)
        except ConnectionError:  # it has been closed on us already: as it should be
            continue
    member.request(StoreGet(("view-1/x",)), PATIENCE_S)  # while all those hang on
    for peer in held:
        peer.close()
    assert run.report()["malformed"] == 0  # none of it came as far as that


def test_what_was_overheard_cannot_be_said_again(run: Coordination, member: Link) -> None:
    """Record every byte that an honest member sends, then send the same again."""
    overheard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        listening = threading.Thread(target=_pass_on, args=(proxy, run.spec.port, overheard))
        listening.start()
        link = Link(f"tcp://127.0.0.1:{proxy.getsockname()[1]}", run.keys, BEAT_S)
        assert link.request(StoreAdd("view-1/overheard", 1), PATIENCE_S) == 1
        link.close()
        listening.join(PATIENCE_S)
    assert len(overheard) > 300
    for cut in (len(overheard), len(overheard) - 20, 200):
        replay = socket.create_connection(("127.0.0.1", run.spec.port), PATIENCE_S)
        with replay, contextlib.suppress(ConnectionError):
            replay.sendall(overheard[:cut])
            replay.shutdown(socket.SHUT_WR)
            while replay.recv(4096):  # until it is shown the door
                pass
    assert member.request(StoreAdd("view-1/overheard", 1), PATIENCE_S) == 2


def _pass_on(proxy: socket.socket, port: int, overheard: bytearray) -> None:
    client, _ = proxy.accept()
    with client, socket.create_connection(("127.0.0.1", port)) as server:

        def back() -> None:
            with contextlib.suppress(OSError):  # either of them has gone
                while data := server.recv(4096):
                    client.sendall(data)

        answering = threading.Thread(target=back)
        answering.start()
        with contextlib.suppress(OSError):
            while data := client.recv(4096):
                overheard.extend(data)
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        answering.join(PATIENCE_S)


def test_a_frame_that_is_too_long_costs_its_sender_the_connection(run: Coordination, member: Link) -> None:
    with raw_socket(run.address, run.keys) as sender:
        events = sender.get_monitor_socket()
        sender.connect(run.address)
        sender.send(b"\0" * (2 << 20))

        def cut_off() -> bool:
            return bool(events.poll(100)) and recv_monitor_message(events)["event"] == zmq.EVENT_DISCONNECTED

        eventually(cut_off, "the end of the connection")
        sender.disable_monitor()


def test_it_listens_on_loopback_only(run: Coordination) -> None:
    ss = shutil.which("ss")
    if ss is None:
        pytest.skip("the command `ss`, which lists listening ports, is not installed")
    lines = subprocess.run([ss, "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line for line in lines if f"pid={run.pid}," in line or line.split()[3].endswith(f":{run.spec.port}")]
    assert [line.split()[3] for line in ours] == [f"127.0.0.1:{run.spec.port}"]


def test_an_address_that_cannot_be_had_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spec = CoordinatorSpec(RunKeys.make(), host="192.0.2.1", port=port)
        heeded = signal.getsignal(signal.SIGINT)
        try:
            with pytest.raises(UserError, match=f"cannot listen on 192.0.2.1:{port}"):
                serve(spec, lambda address: None)
        finally:
            signal.signal(signal.SIGINT, heeded)


def test_the_secret_of_the_run_is_not_in_the_words_of_a_spec() -> None:
    spec = CoordinatorSpec(RunKeys.make())
    assert CoordinatorSpec.from_json(spec.to_json()) == spec
    assert spec.keys.server_secret not in repr(spec)
    assert spec.keys.client_secret not in repr(spec)
