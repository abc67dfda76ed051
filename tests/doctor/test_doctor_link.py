"""Measuring a link: for who has the token only, and with an end to every wait."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import pytest

from shoal.launch.doctor.link import LinkServer, measure

pytestmark = pytest.mark.unit

TOKEN = b"t" * 32


def _is_served(link: socket.socket, answer: bytes) -> bool:
    try:
        link.sendall(answer + b".")
        return link.recv(1) == b"."
    except ConnectionError:  # closed in the middle
        return False


def test_loopback_is_measured() -> None:
    with LinkServer("127.0.0.1", TOKEN) as server:
        found = measure("127.0.0.1", server.port, TOKEN, 0.05)
    assert found.bytes_per_s > 0
    assert 0 < found.latency_s < 3


def test_nobody_without_the_token_is_served() -> None:
    with LinkServer("127.0.0.1", TOKEN) as server:
        with pytest.raises(OSError, match=r"closed|reset"):
            measure("127.0.0.1", server.port, b"w" * 32, 0.05)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
            challenge = link.recv(32, socket.MSG_WAITALL)
            assert len(challenge) == 32
            assert not _is_served(link, challenge)
        measure("127.0.0.1", server.port, TOKEN, 0.01)


def test_an_answer_that_was_overheard_is_of_no_use() -> None:
    import hashlib
    import hmac

    with LinkServer("127.0.0.1", TOKEN) as server:
        answers = []
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
                challenge = link.recv(32, socket.MSG_WAITALL)
                answers.append(hmac.new(TOKEN, challenge, hashlib.sha256).digest())
                served = _is_served(link, answers[0])
                assert served == (len(answers) == 1)


def test_a_flood_of_garbage_keeps_nobody_out() -> None:
    with LinkServer("127.0.0.1", TOKEN) as server:
        for _ in range(200):
            link = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            with link, contextlib.suppress(OSError):  # closed already
                link.sendall(os.urandom(64))
        assert threading.active_count() < 30
        for attempt in range(100):
            try:
                measure("127.0.0.1", server.port, TOKEN, 0.01)
                return
            except OSError:
                assert attempt < 99


def test_nobody_there_is_an_error_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(OSError, match="timed out"):
        measure("127.0.0.1", mute.getsockname()[1], TOKEN, 0.05)
