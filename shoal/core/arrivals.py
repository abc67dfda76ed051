"""Files that arrive while a run trains on them: which are complete, and which are whose epoch's. Pure values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arrived:
    """A file by its name below the place that is followed. `mark` changes with its content, as the place has it."""

    name: str
    nbytes: int
    mark: str = ""


@dataclass(frozen=True)
class Instalment:
    """What `epoch` trains on: `files` that have come since the epoch before. `seen` are the names of all earlier ones,
    which no epoch gets again. `over`: nothing more will come, and there is no such epoch."""

    epoch: int
    files: tuple[Arrived, ...] = ()
    seen: frozenset[str] = frozenset()
    over: bool = False

    @property
    def known(self) -> frozenset[str]:
        """The names of all files that are some epoch's, this one's among them."""
        return self.seen | {file.name for file in self.files}

    def closed(self) -> Instalment:
        """As it is known when its epoch is over: its files are some of those that were seen."""
        return Instalment(self.epoch, (), self.known)

    def next(self, epoch: int, complete: Iterable[Arrived], ended: bool) -> Instalment | None:
        """The instalment of `epoch`, which comes after this one, from what is complete now; None: there is nothing
        new yet, and it has not `ended`."""
        known = self.known
        new = tuple(sorted((file for file in complete if file.name not in known), key=lambda file: file.name))
        if not new and not ended:
            return None
        return Instalment(epoch, new, known, over=not new)

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "files": [[file.name, file.nbytes, file.mark] for file in self.files],
            "seen": sorted(self.seen),
            "over": self.over,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Instalment:
        files = tuple(Arrived(str(name), int(nbytes), str(mark)) for name, nbytes, mark in data["files"])
        return cls(int(data["epoch"]), files, frozenset(data["seen"]), bool(data["over"]))


NOTHING = Instalment(-1)  # before the first epoch


def settled(before: Iterable[Arrived], now: Iterable[Arrived]) -> list[Arrived]:
    """Those that are the same in two looks: nobody has written to them in between."""
    known = {file.name: file for file in before}
    return [file for file in now if known.get(file.name) == file]
