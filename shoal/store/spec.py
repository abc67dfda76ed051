"""What a server process is started with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.comm.keys import RunKeys
from shoal.store.description import Encrypt

DEFAULT_LEASE_S = 1.0


@dataclass(frozen=True)
class ServerSpec:
    """What a server process is started with. `listen` is "ADDRESS:PORT", port 0 for any. `plugins` are modules to
    import first: updaters and consistencies of the user's own; `search_path` is where they may be, before all else."""

    name: str
    post: int
    keys: RunKeys = field(repr=False)
    listen: str = "127.0.0.1:0"
    lease_s: float = DEFAULT_LEASE_S
    encrypt: Encrypt = "auto"
    plugins: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For a child process only: it holds the secret keys."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ServerSpec:
        lists = {name: tuple(data[name]) for name in ("plugins", "search_path")}
        return cls(**{**data, **lists, "keys": RunKeys(**data["keys"])})
