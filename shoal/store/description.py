"""Where a fleet of servers is and how to get in: a small JSON file beside a key file that only its owner can read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.comm.keys import ClientKeys, read_key_file
from shoal.core.errors import UserError

FLEET_FILE = "fleet.json"
KEY_FILE = "kvstore.key"
_FORMAT = 1
Encrypt = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class FleetDescription:
    """For each server the addresses of the processes that may hold it. They stay the same as long as the ports can be
    had again; `epoch` grows with every change. `encrypt` is what clients and servers have agreed on."""

    servers: tuple[tuple[str, ...], ...]
    encrypt: Encrypt = "auto"
    epoch: int = 0

    def to_plain(self) -> dict[str, Any]:
        servers = [list(one) for one in self.servers]
        return {"format": _FORMAT, "servers": servers, "encrypt": self.encrypt, "epoch": self.epoch}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any], source: str) -> FleetDescription:
        """Raises `UserError` naming `source` for what describes no fleet."""
        try:
            servers = tuple(tuple(str(address) for address in one) for one in data["servers"])
            encrypt = data["encrypt"]
            if data["format"] != _FORMAT or not servers or not all(servers) or encrypt not in ("auto", "on", "off"):
                raise ValueError
            return cls(servers, encrypt, int(data["epoch"]))
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{source} describes no fleet of servers: start one with `shoal kvstore`") from None

    def write(self, directory: Path) -> Path:
        """Write it so that the file has its name when it is whole."""
        path = directory / FLEET_FILE
        temporary = directory / f".tmp-{FLEET_FILE}-{os.getpid()}"
        temporary.write_text(json.dumps(self.to_plain(), indent=1), encoding="utf-8")
        temporary.replace(path)
        return path


def read_fleet(path: str | Path) -> tuple[FleetDescription, ClientKeys]:
    """The fleet whose directory (or `fleet.json`) this is. Raises `UserError` if there is none, or it is damaged."""
    path = Path(path)
    directory = path if path.is_dir() else path.parent
    file = directory / FLEET_FILE if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {file}: start servers with `shoal kvstore`, which writes it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{file} describes no fleet of servers: start one with `shoal kvstore`")
    keys, _ = read_key_file(directory / KEY_FILE)
    return FleetDescription.from_plain(data, str(file)), keys
