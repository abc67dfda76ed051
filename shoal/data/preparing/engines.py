"""Engines by name."""

from __future__ import annotations

import os

from shoal.core.errors import ConfigError
from shoal.data.preparing.engine import Engine, Say, engines
from shoal.data.preparing.local import LocalEngine, cores
from shoal.data.preparing.sizes import LEADER_BYTES, PROCESS_BYTES, Sizes, parse_size, show_size

_LEAST_BYTES = LEADER_BYTES + (192 << 20)  # one process with the smallest sizes, and the one that leads


@engines.add("local")
def _local(memory_bytes: int | None, processes: int | None, say: Say) -> Engine:
    return LocalEngine(local_processes(memory_bytes or default_memory(), processes), say)


def default_memory() -> int:
    """As much as all cores need, but no more than half of the machine's memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(_LEAST_BYTES, min(LEADER_BYTES + cores() * PROCESS_BYTES, machine // 2))


def local_processes(memory_bytes: int, asked: int | None = None) -> int:
    """How many processes work: one a core, if the memory is enough for them."""
    if memory_bytes < _LEAST_BYTES:
        raise ConfigError(f"--memory {show_size(memory_bytes)} is too little: give at least {show_size(_LEAST_BYTES)}")
    if asked is not None and asked < 1:
        raise ConfigError(f"--processes {asked}: give at least 1")
    return max(1, min(asked or cores(), (memory_bytes - LEADER_BYTES) // PROCESS_BYTES))


def sizes_for(engine: Engine, memory: str | int | None) -> Sizes:
    """How much is held at once: the same for every engine, unless there is little memory."""
    if memory is None or engine.name != "local":
        return Sizes()
    return Sizes.within((parse_size(str(memory), "--memory") - LEADER_BYTES) // engine.slots)


def open_engine(engine: str | Engine, memory_bytes: int | None, processes: int | None, say: Say) -> Engine:
    """The engine of this name, or the one that was given."""
    if isinstance(engine, Engine):
        return engine
    return engines.get(engine)(memory_bytes, processes, say)
