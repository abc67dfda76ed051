"""What a shard answers: frozen values, one for each operation. A refusal is an answer, too, not an exception."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.store.operations import Commit

Array = npt.NDArray[Any]

Reason = Literal[
    "unknown",  # no such slice here: declare it first
    "mismatch",  # shape, dtype, row numbers or declaration do not fit what is held
    "forgotten",  # this client's request is so old that its answer has been thrown away
    "missing part",  # a part that was to be committed is not staged
    "committed",  # the transaction has been committed already, nothing may be staged for it
    "out of turn",  # the commit was to make another version than the one that is next
    "board",  # the task is not this worker's to commit, or the stretch is not the open one
    "era",  # the state that this was meant for has been written anew
]


@dataclass(frozen=True)
class Answer:
    """Base of all answers. `version` is the shard's after the operation: it counts commits, pushes and sets."""

    version: int


@dataclass(frozen=True)
class Refused(Answer):
    """Nothing was changed. `detail` is for people."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class Done(Answer):
    """It is done."""


@dataclass(frozen=True, eq=False)
class Found:
    """What was read of one slice. `values` is None where nothing is newer than asked for; `rows` are numbers of the
    whole table, None for all rows or a dense slice. `version` is what to give as `since` next time."""

    where: str
    values: npt.NDArray[Any] | None
    rows: npt.NDArray[Any] | None
    version: int


@dataclass(frozen=True, eq=False)
class Pulled(Answer):
    """In the order asked for. Arrays may be read-only views of what the shard holds: send or copy them before the next
    operation that changes something."""

    found: tuple[Found, ...]


@dataclass(frozen=True, eq=False)
class UpdaterState(Answer):
    """The arrays that the updater of a slice keeps, by name: views, as in `Pulled`."""

    state: dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Squares(Answer):
    """Sum of the squares of the shaped, summed gradient over this shard's slices."""

    squares: float


@dataclass(frozen=True)
class Committed(Answer):
    """The transaction is committed, as `number`. `staleness` is how many versions were made between reading and
    committing, `rate_scale` what the rates were multiplied with: give it to the other servers. `before` says that it
    had been committed earlier and nothing was changed now."""

    number: int
    staleness: int
    rate_scale: float
    before: bool = False


@dataclass(frozen=True)
class Logged:
    """A commit that is remembered: as it took effect (rates scaled, task done), so that it can be done elsewhere."""

    number: int
    staleness: int
    commit: Commit


@dataclass(frozen=True)
class Recalled(Answer):
    """Commits that are remembered, oldest first. `last` is the number of the last commit, remembered or not."""

    commits: tuple[Logged, ...]
    last: int = 0


class Record(NamedTuple):
    """What a commit has recorded, and how many versions old it was."""

    number: int
    staleness: int
    transaction: str
    record: bytes


@dataclass(frozen=True)
class Recorded(Answer):
    """The records of many commits, in few arrays: a row of `rows` has number, staleness, and the lengths of the
    transaction's name and of the record, which stand one behind the other in `text`."""

    rows: Array
    text: bytes

    @staticmethod
    def of(version: int, commits: Iterable[Logged]) -> Recorded:
        found = [(one.number, one.staleness, one.commit.transaction.encode(), one.commit.record) for one in commits]
        rows = [(number, staleness, len(name), len(record)) for number, staleness, name, record in found]
        text = b"".join(name + record for _, _, name, record in found)
        return Recorded(version, np.array(rows, dtype=np.int64).reshape(-1, 4), text)

    def each(self) -> Iterator[Record]:
        """Oldest first."""
        at = 0
        for number, staleness, name, record in self.rows.tolist():
            middle, stop = at + name, at + name + record
            yield Record(number, staleness, self.text[at:middle].decode(), self.text[middle:stop])
            at = stop


@dataclass(frozen=True)
class StagedParts(Answer):
    """Transaction and its staged parts, in order of arrival and of number."""

    transactions: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Eras(Answer):
    """By run, the number of its era; nothing of a run that has begun none."""

    numbers: dict[str, int]


@dataclass(frozen=True)
class Leased(Answer):
    """The worker holds this task now, and shall commit it. `lead`: how far it is ahead of the slowest."""

    stretch: int
    task: int
    lead: int = 0


@dataclass(frozen=True)
class Wait(Answer):
    """No task now. ``bound``: `workers` are behind and must commit first. ``leased``: all that is left is in the hands
    of `workers`; if one of them dies there will be something to do. Ask again, with another sequence number."""

    cause: Literal["bound", "leased"]
    workers: tuple[str, ...]


@dataclass(frozen=True)
class NothingLeft(Answer):
    """All tasks of the stretch are committed."""

    stretch: int


@dataclass(frozen=True)
class Progress(Answer):
    """The board as it stands. `stretch` is None when none has been opened."""

    stretch: int | None
    count: int
    committed: tuple[int, ...]
    leases: dict[str, int]  # worker -> task
    clocks: dict[str, int]  # of the living
    staleness: dict[int, int]  # versions between reading and committing -> how many commits
    leads: dict[int, int]  # clock ahead of the slowest when a task was begun -> how many tasks
