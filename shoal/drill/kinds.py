"""The kinds of faults: what each does, whom it hits, and what it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from shoal.core.errors import ConfigError
from shoal.core.registry import Registry

Aim = Literal["worker", "server", "coordinator", "host"]


@dataclass(frozen=True)
class Kind:
    """A way to hurt a run. `removes`: the one it hits will not take part in the same view again, so that another
    worker must be there to go on; `seconds`: how long it lasts where the plan does not say (None: for ever)."""

    name: str
    does: str
    aims_at: Aim = "worker"
    removes: bool = True
    seconds: float | None = None

    @property
    def act(self) -> str:
        """What is done, whoever it is done to: `kill-server` is a `kill`."""
        return self.name.removesuffix("-server")


KINDS: Registry[Kind] = Registry("kind of fault")

for _kind in (
    Kind("kill", "ends a worker at once (SIGKILL): a crash, a segfault, the out-of-memory killer"),
    Kind("freeze", "stops a worker (SIGSTOP): it holds its sockets open and says nothing"),
    Kind(
        "slow", "lets a worker run only a fifth of the time (SIGSTOP and SIGCONT in turn)", removes=False, seconds=2.0
    ),
    Kind("preempt", "tells a worker to go (SIGTERM), as a spot instance is told"),
    Kind("kill-server", "ends a process of a server at once (SIGKILL): the one that holds it", aims_at="server"),
    Kind("freeze-server", "stops a process of a server (SIGSTOP); for ever only where it has a copy", aims_at="server"),
    Kind("slow-server", "lets a server run only a fifth of the time", aims_at="server", removes=False, seconds=2.0),
    Kind("coordinator", "ends the coordinator at once (SIGKILL)", aims_at="coordinator", removes=False),
    Kind("cut", "takes the link of a host down: no packet arrives, and no reset", aims_at="host", seconds=6.0),
):
    KINDS.add(_kind.name)(_kind)


def parse_kinds(words: str) -> tuple[Kind, ...]:
    """``kill,freeze`` -> the kinds, each once, in the order given. Raises ConfigError for an unknown one or none."""
    names = list(dict.fromkeys(name.strip() for name in words.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--kinds {words!r} names no kind of fault: choose among {', '.join(KINDS)}")
    try:
        return tuple(KINDS.get(name) for name in names)
    except ConfigError as error:
        raise ConfigError(f"--kinds {words}: {error}") from None


def check_possible(kinds: Iterable[Kind], workers: int, hosts: int) -> None:
    """Refuse, before anything runs, what this run cannot be hurt by. Raises ConfigError that says what to do."""
    for kind in kinds:
        if kind.aims_at == "host" and hosts < 2:
            raise ConfigError(
                f"the fault {kind.name!r} {kind.does}, so it needs a run on several hosts: give --hosts 2, and the "
                "drill makes hosts of network namespaces on this machine (as root, with iproute2), or leave "
                f"{kind.name!r} out of --kinds"
            )
        if kind.aims_at == "worker" and kind.removes and workers < 2:
            raise ConfigError(
                f"the fault {kind.name!r} takes a worker away, and --workers {workers} leaves nobody to go on: "
                "give --workers 2 or more"
            )
