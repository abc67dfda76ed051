"""What a fleet of servers shall be like, and who starts its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.core.errors import UserError
from shoal.store.description import Encrypt
from shoal.store.spec import DEFAULT_LEASE_S


@dataclass(frozen=True)
class FleetTerms:
    """What a fleet shall be like. `patience_s`: a process that holds no post and is silent for so long is replaced.
    `hang_s`: so is any other that shows no sign of life for so long, even where nobody else has its state; None: that
    is never given up."""

    servers: int = 1
    replicas: int = 1
    host: str = "127.0.0.1"
    port: int = 0  # the first process's; the others' follow. 0: any
    lease_s: float = DEFAULT_LEASE_S
    snapshot_s: float | None = None
    encrypt: Encrypt = "auto"
    patience_s: float = 10.0
    hang_s: float | None = None

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise UserError(f"a fleet of {self.servers} servers cannot be: ask for 1 or more")
        if self.replicas not in (1, 2):
            raise UserError(f"a server can have 1 or 2 replicas, not {self.replicas}")
        if self.port and not 0 < self.port <= 65536 - self.servers * self.replicas:
            raise UserError(f"port {self.port} leaves no room for {self.servers * self.replicas} processes")
        if self.snapshot_s is not None and self.snapshot_s <= 0:
            raise UserError(f"snapshots every {self.snapshot_s} s cannot be: give a time above 0")


class Starter(Protocol):
    """Starts processes for the keeper, which calls it in its own thread. No call may wait."""

    def start(self, name: str, post: int, listen: str) -> None:
        """Start a process of this name that runs `shoal.store.process.serve`, and say `on_started` or `on_ended`."""

    def kill(self, name: str, why: str) -> None:
        """End it by force, for the reason `why`; `on_ended` follows."""

    def pid(self, name: str) -> int:
        """Its process id; 0 as long as there is none."""
