"""What the coordinator knows of each member, and what it has to tell of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from shoal.elastic.status import AgentStatus, WorkerNote, WorkerStatus


@dataclass(frozen=True)
class Notice:
    """Something for the log. `who` names a member in words; `cause` says why it was lost."""

    kind: Literal["joined", "lost", "left", "view"]
    who: str
    key: str = ""
    cause: str = ""
    view: int = 0

    def __str__(self) -> str:
        words = {"joined": f"{self.who} joined view {self.view}", "lost": f"{self.who} is lost: {self.cause}"}
        return words.get(self.kind) or (f"{self.who} left" if self.kind == "left" else f"view {self.view}: {self.who}")


@dataclass
class KnownWorker:
    """A worker that has spoken. `order`: of arrival; `since_s`: when its status became what it is; `heard_s`: its last
    sign of life."""

    status: WorkerStatus
    order: int
    since_s: float
    heard_s: float

    def to_json(self) -> dict[str, Any]:
        return {"status": asdict(self.status), "order": self.order}

    @classmethod
    def from_json(cls, data: dict[str, Any], now_s: float) -> KnownWorker:
        return cls(WorkerStatus(**data["status"]), int(data["order"]), now_s, now_s)


@dataclass
class KnownAgent:
    """An agent that has spoken, in the order of arrival."""

    status: AgentStatus
    heard_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self.status)

    @classmethod
    def from_json(cls, data: dict[str, Any], now_s: float) -> KnownAgent:
        # who did not move then may do so now
        notes = {key: WorkerNote(**{**note, "still": None}) for key, note in data["workers"].items()}
        return cls(AgentStatus(**{**data, "workers": notes}), now_s)
