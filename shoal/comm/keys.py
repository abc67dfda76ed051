"""The keys of a run: made anew for each, known to its members only.

The server pair proves the coordinator (and the run's key-value servers) to its members; the client pair, shared by all
members, proves them to it. Keys are CURVE keys in z85, 40 characters. They travel by inherited memory and in the key
file of the run directory, which only its owner can read: never in arguments, logs or the configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path

import zmq

from shoal.core.errors import UserError

_KEY_CHARACTERS = 40
_LARGEST_FILE_BYTES = 4096


@dataclass(frozen=True)
class ClientKeys:
    """What a member needs to reach the coordinator or a server of the run, and to be let in."""

    server_public: str
    client_public: str
    client_secret: str = field(repr=False)


@dataclass(frozen=True)
class RunKeys:
    """All keys of a run: for the coordinator, the servers and whoever starts them."""

    server_public: str
    server_secret: str = field(repr=False)
    client_public: str
    client_secret: str = field(repr=False)

    @classmethod
    def make(cls) -> RunKeys:
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        return cls(server_public.decode(), server_secret.decode(), client_public.decode(), client_secret.decode())

    def client(self) -> ClientKeys:
        return ClientKeys(self.server_public, self.client_public, self.client_secret)


def write_key_file(path: str | Path, keys: ClientKeys, address: str) -> None:
    """Write what `read_key_file` reads. The file has its name when it is whole, and mode 0600 from the first byte."""
    path = Path(path)
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"address": address, **asdict(keys)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def read_key_file(path: str | Path) -> tuple[ClientKeys, str]:
    """The keys and the coordinator's address. Raises `UserError` if it is missing, damaged, or open to others."""
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_LARGEST_FILE_BYTES)
    except FileNotFoundError:
        raise UserError(f"there is no key file {path}: copy it from the run directory of the run to join") from None
    except OSError as error:
        raise UserError(f"cannot read the key file {path}: {error.strerror}") from None
    if mode & 0o077:
        raise UserError(f"the key file {path} can be read by others (mode {mode:04o}): run `chmod 600 {path}`")
    try:
        data = json.loads(text)
        address = data.pop("address")
        keys = ClientKeys(**data)
        if not isinstance(address, str) or not all(_is_key(key) for key in data.values()):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"the key file {path} is damaged: copy it anew from the run directory") from None
    return keys, address


def _is_key(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and len(value) == _KEY_CHARACTERS
