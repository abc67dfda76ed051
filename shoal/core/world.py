"""Who takes part: a worker's place in the group, and the numbered membership of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """One process of a run."""

    role: str  # "worker", later "server"
    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank} on {self.host}"


@dataclass(frozen=True)
class View:
    """Numbered membership. A new view replaces ranks wholesale; survivors keep their order."""

    number: int
    members: tuple[Member, ...]

    @property
    def size(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class World:
    """This worker's place: rank and size, and where it computes."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_first(self) -> bool:
        return self.rank == 0
