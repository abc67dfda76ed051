"""Who takes part: a worker's place in the group, and the numbered membership of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Member:
    """One process of a run.

    `key` names the process for as long as the run lasts, whatever its rank becomes. Members with the same `agent` were
    started by it and share its control page, where each has its own `seat`. `address` is where peers on other hosts
    reach it; empty where all are on one.
    """

    role: str  # "worker", later "server"
    rank: int
    host: str
    pid: int
    key: str = ""
    agent: str = ""
    seat: int = 0
    address: str = ""

    def __str__(self) -> str:
        return f"{self.role} {self.rank} on {self.host}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Member:
        return cls(**data)


@dataclass(frozen=True)
class View:
    """Numbered membership. A new view replaces ranks wholesale; survivors keep their order. Numbers only grow."""

    number: int
    members: tuple[Member, ...]

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def hosts(self) -> int:
        """On how many hosts its members are."""
        return len({member.host for member in self.members})

    def member(self, key: str) -> Member | None:
        """The member with this key, or None."""
        return next((member for member in self.members if member.key == key), None)

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "members": [member.to_json() for member in self.members]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> View:
        return cls(int(data["number"]), tuple(Member.from_json(one) for one in data["members"]))


@dataclass(frozen=True)
class World:
    """This worker's place: rank and size, where it computes, and its seat in the control page of its host."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    seat: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0
