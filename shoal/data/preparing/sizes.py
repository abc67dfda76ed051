"""Sizes as people write them, and how much is held in memory at once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.core.errors import ConfigError

_UNITS = {"": 1, "b": 1, **{f"{letter}ib": 1 << 10 * (power + 1) for power, letter in enumerate("kmgt")}}
_UNITS |= {f"{letter}b": 1000 ** (power + 1) for power, letter in enumerate("kmgt")}
PROCESS_BYTES = 384 << 20  # what a process needs at most, with the usual sizes
LEADER_BYTES = 256 << 20  # and the one that lists files and hands out tasks
_LARGEST = 8  # times the usual
_ITSELF_BYTES = 160 << 20  # Python, NumPy and Arrow with next to no data


def parse_size(words: str, setting: str) -> int:
    """Bytes: ``1GiB``, ``200MB``, ``4096``. Raises `ConfigError` that names the setting."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", words)
    unit = found and _UNITS.get(found[2].lower())
    if not found or not unit or float(found[1]) <= 0:
        raise ConfigError(f"{setting} {words}: give a size such as 512MiB or 2GB")
    return int(float(found[1]) * unit)


def show_size(nbytes: float) -> str:
    """As a person reads it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"


@dataclass(frozen=True)
class Sizes:
    """How much of the source a task reads, how many bytes of rows are sorted at once on the way in, and on the way out.

    They do not depend on the number of processes: the same rows give the same shards on any machine.
    """

    block_bytes: int = 32 << 20
    run_bytes: int = 40 << 20
    piece_bytes: int = 32 << 20

    @classmethod
    def within(cls, memory_bytes: int) -> Sizes:
        """For one process that may use so much: smaller than usual only if it must be, and larger if there is plenty,
        since what is shuffled in fewer and larger pieces may be much more."""
        usual = cls()
        part = (memory_bytes - _ITSELF_BYTES) / (PROCESS_BYTES - _ITSELF_BYTES)
        if part >= 1:
            part = min(_LARGEST, memory_bytes // PROCESS_BYTES)
        return cls(
            *(max(1 << 20, int(size * part)) for size in (usual.block_bytes, usual.run_bytes, usual.piece_bytes))
        )
