"""Finding a store from what a user gives: a directory, an address with a key file, or values."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.comm.bulk import BulkClient, Message
from shoal.comm.keys import ClientKeys, RunKeys, read_key_file
from shoal.core.errors import PeerLost, ShoalError, UserError
from shoal.store.description import Encrypt, FleetDescription, read_fleet
from shoal.store.run_keys import read_run_keys

Fleet = str | Path | FleetDescription | Callable[[], FleetDescription]
Key = str | Path | ClientKeys | RunKeys | None

_AGAIN_S = 0.05


@dataclass(frozen=True)
class Place:
    """Where a store is, and how to get in."""

    describe: Callable[[], FleetDescription] | None = None
    keys: ClientKeys | None = None
    address: str = ""
    run_keys: RunKeys | None = None
    encrypt: Encrypt = "auto"


def find(fleet: Fleet, key: Key, mode: str, deadline_s: float) -> Place:
    """Raises `UserError` for what leads nowhere."""
    if mode != "server":
        return _meeting(fleet, key, mode)
    if isinstance(fleet, FleetDescription) or callable(fleet):
        describe = fleet if callable(fleet) else lambda: fleet
        return Place(describe, _client_keys(key, "a description"), encrypt=describe().encrypt)
    if not _is_address(fleet):
        description, keys = read_fleet(fleet)
        path = fleet
        return Place(
            lambda: read_fleet(path)[0],
            keys if key is None else _client_keys(key, str(fleet)),
            encrypt=description.encrypt,
        )
    address = str(fleet)
    keys = _client_keys(key, address)
    found = _ask(address, keys, deadline_s)
    return Place(lambda: found, keys, encrypt=found.encrypt)


def _meeting(fleet: Fleet, key: Key, mode: str) -> Place:
    if not isinstance(fleet, str) or not _is_address(fleet):
        raise UserError(f'in mode {mode!r} the first argument is where worker 0 listens, as "HOST:PORT", not {fleet!r}')
    if isinstance(key, ClientKeys) or key is None:
        raise UserError(
            f"in mode {mode!r} every worker is a server, too: give `key`, the path of a file that "
            "`shoal.store.run_keys.make_run_keys` has made"
        )
    return Place(address=fleet, run_keys=key if isinstance(key, RunKeys) else read_run_keys(key))


def _is_address(fleet: str | Path) -> bool:
    if isinstance(fleet, Path):
        return False
    host, colon, port = fleet.removeprefix("tcp://").rpartition(":")
    return bool(colon and host and port.isdigit()) and "/" not in host


def _client_keys(key: Key, what: str) -> ClientKeys:
    if isinstance(key, ClientKeys):
        return key
    if isinstance(key, RunKeys):
        return key.client()
    if key is None:
        raise UserError(
            f"{what} alone does not let you in: give `key`, the path of the key file that `shoal kvstore` wrote"
        )
    return read_key_file(key)[0]


def _ask(address: str, keys: ClientKeys, deadline_s: float) -> FleetDescription:
    """Ask a server where its fleet is."""
    until_s = time.monotonic() + deadline_s
    while True:
        left_s = until_s - time.monotonic()
        try:
            client = BulkClient(
                address, keys, name="client", server_name=f"the server at {address}", deadline_s=max(0.1, left_s)
            )
            try:
                data = client.request(Message({"k": "who"}), max(0.1, left_s)).head["fleet"]
            finally:
                client.close()
            if data:
                return FleetDescription.from_plain(data, f"the server at {address}")
        except UserError:
            raise
        except PeerLost as error:
            if left_s <= 0:
                raise UserError(f"no server of a store answers at {address}: {error}") from None
        if left_s <= 0:
            raise ShoalError(f"the server at {address} does not know its fleet yet: is `shoal kvstore` starting?")
        time.sleep(_AGAIN_S)
