"""The coordinator as a process of its own: what it is started with, and its main function."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.elastic.keys import RunKeys
from shoal.elastic.terms import Terms


@dataclass(frozen=True)
class CoordinatorSpec:
    """What a coordinator is started with. `port` 0: any; a coordinator that is started again gets the port that the
    first one had. `journal`: where it writes down what it must not forget; None: not known yet, see `SetJournal`."""

    keys: RunKeys
    terms: Terms = field(default_factory=Terms)
    host: str = "127.0.0.1"
    port: int = 0
    journal: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For a child process only: it holds the secret keys."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CoordinatorSpec:
        rest = {**data, "keys": RunKeys(**data["keys"]), "terms": Terms(**data["terms"])}
        return cls(**rest)


def serve(spec: CoordinatorSpec, on_ready: Callable[[str], None]) -> None:
    """Be the coordinator until killed. `on_ready` gets the address (``tcp://host:port``) once it listens.

    Ctrl-C reaches every process of the terminal and is the launcher's to handle: it is ignored here. Raises
    `UserError` where the address cannot be had."""
    from shoal.elastic.coordinator import Coordinator

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Coordinator(spec) as coordinator:
        on_ready(coordinator.address)
        coordinator.run()
