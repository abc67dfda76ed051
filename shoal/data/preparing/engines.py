"""Engines by name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from shoal.core.errors import ConfigError
from shoal.data.places import Place
from shoal.data.preparing.engine import Engine, Say, engines
from shoal.data.preparing.local import LocalEngine, cores
from shoal.data.preparing.sizes import LEADER_BYTES, PROCESS_BYTES, Sizes, parse_size, show_size

_LEAST_BYTES = LEADER_BYTES + (192 << 20)  # one process with the smallest sizes, and the one that leads


@engines.add("local")
def _local(memory_bytes: int | None, processes: int | None, say: Say, options: Mapping[str, str]) -> Engine:
    known_options("local", options)
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


@engines.add("ray")
def _ray(memory_bytes: int | None, processes: int | None, say: Say, options: Mapping[str, str]) -> Engine:
    from shoal.data.preparing.on_ray import RayEngine

    known_options("ray", options, "address", "paths")
    return RayEngine(options.get("address"), processes, say, shared_paths=_shared(options))


@engines.add("spark")
def _spark(memory_bytes: int | None, processes: int | None, say: Say, options: Mapping[str, str]) -> Engine:
    from shoal.data.preparing.on_spark import SparkEngine

    own = {name: value for name, value in options.items() if not name.startswith("spark.")}
    known_options("spark", own, "master", "paths", "spark.*")
    settings = {name: value for name, value in options.items() if name not in own}
    return SparkEngine(options.get("master"), processes, say, settings, shared_paths=_shared(options))


def known_options(engine: str, options: Mapping[str, str], *known: str) -> None:
    """Raises `ConfigError` for an option that the engine does not have."""
    for name in options:
        if name not in known:
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise ConfigError(f"--engine-option {name}={options[name]}: the engine {engine} {has}")


def _shared(options: Mapping[str, str]) -> bool:
    if options.get("paths", "own") not in ("own", "shared"):
        raise ConfigError(f"--engine-option paths={options['paths']}: give own or shared")
    return options.get("paths") == "shared"


@contextlib.contextmanager
def open_engine(
    engine: str | Engine, memory_bytes: int | None, processes: int | None, say: Say, options: Mapping[str, str]
) -> Iterator[Engine]:
    """The engine of this name, which is closed afterwards; or the one that was given, which is its owner's."""
    if isinstance(engine, Engine):
        yield engine
        return
    with engines.get(engine)(memory_bytes, processes, say, options) as made:
        yield made


def refuse_local_paths(engine: Engine, *places: Place) -> None:
    """Raises `ConfigError` for a path that other machines would look for on their own disks."""
    for place in places:
        if engine.spans_machines and place.is_local:
            raise ConfigError(
                f"{place} is a path of this machine, and the engine {engine.name} works on several: give a place that "
                "all can reach (hdfs://, s3://); or, if it is mounted on all of them, --engine-option paths=shared"
            )
