"""What two processes know of each other before the first message: who, where, by which way, under which key."""

from __future__ import annotations

import hmac
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shoal.core.errors import UserError

Encrypt = Literal["auto", "on", "off"]
Way = Literal["shm", "tcp"]

ID_BYTES, KEY_BYTES, PROOF_BYTES = 16, 32, 32
GREETING_BYTES = ID_BYTES + PROOF_BYTES
MAX_NAME = 100
_ADDRESS = re.compile(r"(?:tcp://)?(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Session:
    """One connection that is about to be. The key comes from the server, over an encrypted channel that both ends have
    proved themselves on, is used for one connection, and is never written down."""

    id: bytes
    key: bytes = field(repr=False)
    way: Way
    encrypted: bool
    name: str  # of the client

    def proof(self, side: Literal["client", "server"]) -> bytes:
        """What shows the other end of a fresh socket that this one knows the key."""
        return hmac.digest(self.key, f"shoal bulk 1, I am the {side}, ".encode() + self.id, "sha256")

    def greeting(self) -> bytes:
        """The first bytes that the client sends."""
        return self.id + self.proof("client")


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """``HOST:PORT``, ``[IPV6]:PORT``, or either after ``tcp://``. Raises `UserError` for anything else."""
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65535:
            raise UserError(f"{text!r} is no address: write it as HOST:PORT, such as 127.0.0.1:40001")
        return cls(match["six"] or match["host"], int(match["port"]))

    @property
    def is_six(self) -> bool:
        return ":" in self.host

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_six else f"{self.host}:{self.port}"


def host_id() -> str:
    """The same for processes that share memory and network: boot id and network namespace. Empty: not to be known."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return ""


def choose_way(wish: str, same_host: bool) -> Way | None:
    """How a client that wishes "auto", "shm" or "tcp" is served; None if it cannot be."""
    if wish == "shm":
        return "shm" if same_host else None
    return "shm" if wish == "auto" and same_host else "tcp"


def choose_encryption(server: str, client: str, same_host: bool) -> bool:
    """Whether TCP is encrypted as well as authenticated: if either side insists, else unless one does without, else
    between hosts."""
    wishes = (server, client)
    if "on" in wishes:
        return True
    return "off" not in wishes and not same_host


def plain_name(value: Any) -> str:
    """A name that can be shown, whatever came."""
    text = value if isinstance(value, str) else "client"
    return "".join(one if one.isprintable() else "?" for one in text[:MAX_NAME]) or "client"
