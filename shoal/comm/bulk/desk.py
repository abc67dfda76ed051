"""Who may open a connection: sessions that were given out over the door and not used yet. Pure."""

from __future__ import annotations

import hmac
import secrets
from typing import Any

import msgpack

from shoal.comm.bulk.session import (
    GREETING_BYTES,
    ID_BYTES,
    KEY_BYTES,
    Encrypt,
    Session,
    Way,
    choose_encryption,
    choose_way,
    plain_name,
)

MAX_KNOCK_BYTES = 4096
_VALID_S = 20.0
_MOST_WAITING = 1024
_WISHES = {"way": ("auto", "shm", "tcp"), "encrypt": ("auto", "on", "off")}


class Desk:
    """Answers knocks with sessions, and recognises those who come with one. `unix`: the name of the local socket."""

    def __init__(self, encrypt: Encrypt, host: str, unix: bytes | None) -> None:
        self._encrypt, self._host, self._unix = encrypt, host, unix
        self._waiting: dict[bytes, tuple[Session, float]] = {}

    def answer(self, knock: bytes, port: int, now_s: float) -> bytes | None:
        """What to answer to a knock, or None if it is none. `port`: where TCP connections are taken."""
        wish = _unpack(knock)
        if wish is None:
            return None
        self._expire(now_s)
        same_host = bool(self._host) and wish["host"] == self._host and self._unix is not None
        way = choose_way(wish["way"], same_host)
        if way is None:
            return _pack({"refused": "it is on another host, so that no memory can be shared: use way='tcp'"})
        if len(self._waiting) >= _MOST_WAITING:
            return _pack({"refused": "too many connections are being made: try again"})
        encrypted = way == "tcp" and choose_encryption(self._encrypt, wish["encrypt"], same_host)
        session = Session(
            secrets.token_bytes(ID_BYTES), secrets.token_bytes(KEY_BYTES), way, encrypted, plain_name(wish["name"])
        )
        self._waiting[session.id] = (session, now_s + _VALID_S)
        return _pack(
            {
                "id": session.id,
                "key": session.key,
                "way": way,
                "encrypted": encrypted,
                "port": port,
                "unix": self._unix if way == "shm" else None,
            }
        )

    def admit(self, greeting: bytes, way: Way, now_s: float) -> Session | None:
        """The session of a client that greets, which is then used up; None if it has none, or cannot prove it."""
        self._expire(now_s)
        session, _ = self._waiting.get(greeting[:ID_BYTES], (None, 0.0))
        if session is None or len(greeting) != GREETING_BYTES or session.way != way:
            return None
        if not hmac.compare_digest(greeting[ID_BYTES:], session.proof("client")):
            return None
        del self._waiting[session.id]
        return session

    def _expire(self, now_s: float) -> None:
        # in the order of their making, so that the first one that is still valid ends it
        for identity in [known for known, (_, until_s) in self._waiting.items() if until_s < now_s]:
            del self._waiting[identity]


def knock(host: str, name: str, way: str, encrypt: str) -> bytes:
    """What a client asks at the door."""
    return _pack({"version": 1, "host": host, "name": name, "way": way, "encrypt": encrypt})


def read_answer(data: bytes, name: str) -> tuple[Session, int, bytes | None] | str:
    """Session, TCP port and name of the local socket; or why there is none."""
    try:
        found = msgpack.unpackb(data)
        if "refused" in found:
            return str(found["refused"])
        session = Session(found["id"], found["key"], found["way"], found["encrypted"], name)
        return session, int(found["port"]), found["unix"]
    except (ValueError, TypeError, KeyError):
        return "its answer cannot be understood: is it of another version?"


def _unpack(knock: bytes) -> dict[str, Any] | None:
    if len(knock) > MAX_KNOCK_BYTES:
        return None
    try:
        wish = msgpack.unpackb(knock)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return None
    if not isinstance(wish, dict) or wish.get("version") != 1 or not isinstance(wish.get("host"), str):
        return None
    proper = all(wish.get(name) in allowed for name, allowed in _WISHES.items())
    return {"name": None, **wish} if proper else None


def _pack(value: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed
