"""What a shard can be asked to do: frozen values, carried out by ``shard.do(operation)``.

Whatever changes something is a `Change` and carries (client, sequence): a client numbers its changes 1, 2, 3 … and
repeats one under its number until it is answered. A repeated one gets the stored answer and changes nothing, whether it
had been carried out or refused; to try again after a refusal or a `Wait`, take the next number. Everything else reads.

Arrays belong to the caller: a shard neither keeps nor changes them. Slices are named by their labels (`Slice.label`),
rows by their numbers in the whole table. `shoal.store.packing` turns operations and answers into plain data and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from shoal.store.keys import Slice


@dataclass(frozen=True)
class Operation:
    """Base of all operations."""


@dataclass(frozen=True)
class Era:
    """A life of what a run keeps with servers: it begins when a state is written there from outside, at the start or
    from a checkpoint, and lasts until that is done again. What belongs to one says nothing in another."""

    run: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Change(Operation):
    """Changes the shard: carried out once, however often it arrives. One that names an era is refused in any other."""

    client: str
    sequence: int
    era: Era | None = None


# ---- what operations are made of


UNSHAPED = -1  # the group of slices that are no gradient's: neither rates nor `Shaping` concern them


@dataclass(frozen=True)
class Holding:
    """A slice that a server shall hold, what updates it, and which of the given learning rates is its own, if any."""

    slice: Slice
    updater: str = "assign"
    options: dict[str, Any] = field(default_factory=dict)
    group: int = 0


@dataclass(frozen=True)
class Coding:
    """What a codec of `shoal.comm.codecs` was given: an array of this shape and dtype, of which the elements
    ``[start, stop)``, counted in the flattened array, are meant."""

    codec: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Update:
    """An array for one slice: the whole slice (any shape of as many elements), or the given rows of a table. Rows may
    repeat: their values are added up. May be wider than the slice, such as float64 sums for float32 parameters. With
    `coding`, values are the bytes that a codec has made of a whole slice; a shard is given what they decode to."""

    where: str
    values: npt.NDArray[Any]
    rows: npt.NDArray[Any] | None = None
    coding: Coding | None = None


@dataclass(frozen=True, eq=False)
class Wanted:
    """What to read of one slice: all of it, units ``[start, stop)`` of its key, or the given `rows` of a table. With
    `since`, only if it has changed after that version; of a table without given rows, only the rows that have."""

    where: str
    rows: npt.NDArray[Any] | None = None
    since: int | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Shaping:
    """What is done to a sum of gradients: divide it, round it to the slice's dtype, clip it by value, scale it (what
    the global norm asks for), let the updater apply it with its rate times `rate_scale`, and keep values within
    `limits`."""

    divisor: float = 1.0
    clip: float | None = None
    scale: float = 1.0
    rate_scale: float = 1.0
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Task:
    """A task of a stretch in a worker's hands. `lead`: by how many tasks it was ahead of the slowest when it got it."""

    stretch: int
    number: int
    worker: str
    lead: int = 0


# ---- keys and values


@dataclass(frozen=True)
class Declare(Change):
    """Hold these slices, filled with zeros. One that is held in the same way already is left as it is; one that
    differs, or overlaps, refuses the whole. -> Done"""

    holdings: tuple[Holding, ...]


@dataclass(frozen=True)
class Remove(Change):
    """Hold these slices no longer, nor what is staged for them. -> Done"""

    where: tuple[str, ...]


@dataclass(frozen=True)
class Set(Change):
    """Overwrite values; what updaters keep stays. Of a row that is named several times the last counts. -> Done"""

    updates: tuple[Update, ...]


@dataclass(frozen=True)
class Push(Change):
    """Let the updaters apply these arrays at once. `rates` by group; without, each updater's own. -> Done"""

    updates: tuple[Update, ...]
    rates: tuple[float, ...] = ()
    shaping: Shaping = Shaping()


@dataclass(frozen=True)
class Pull(Operation):
    """Read values. -> Pulled"""

    wanted: tuple[Wanted, ...]


@dataclass(frozen=True)
class PushPull(Change):
    """A push and a pull of the outcome. Repeated, it pushes nothing and reads what is there now. -> Pulled"""

    updates: tuple[Update, ...]
    wanted: tuple[Wanted, ...]
    rates: tuple[float, ...] = ()
    shaping: Shaping = Shaping()


@dataclass(frozen=True)
class GetState(Operation):
    """Read what the updater of one slice keeps. -> UpdaterState"""

    where: str


@dataclass(frozen=True, eq=False)
class SetState(Change):
    """Replace what the updater of one slice keeps, as when a checkpoint is loaded. -> Done"""

    where: str
    state: dict[str, npt.NDArray[Any]]


# ---- transactions


@dataclass(frozen=True)
class Stage(Change):
    """Keep a part of a transaction, unapplied. The same part staged again replaces the former. An empty part is a
    part: stage one on every server. A transaction that is tried anew takes a new name. -> Done"""

    transaction: str
    part: int
    updates: tuple[Update, ...]


@dataclass(frozen=True)
class Norms(Operation):
    """Add up the staged parts, shape the sum (divisor and clip), and square it. -> Squares"""

    transaction: str
    parts: tuple[int, ...]
    shaping: Shaping = Shaping()


@dataclass(frozen=True, kw_only=True)
class Commit(Change):
    """Add up exactly these parts in order of their numbers, apply the sum, and forget all that was staged for the
    transaction. Update, task, version and record take effect together or not at all. -> Committed

    A transaction that is committed already is answered so, whoever asks: survivors may all settle it. With `number`,
    it is refused unless it makes this commit number (those of other servers come in the order of server 0). With
    `task`, it is refused unless the board says that the worker holds it. With `damping`, an update that is s versions
    old (this version less `read_version`) counts 1 / (1 + s): the rates are scaled, and the answer says by how much.
    """

    transaction: str
    parts: tuple[int, ...]
    rates: tuple[float, ...] = ()
    shaping: Shaping = Shaping()
    record: bytes = b""
    read_version: int | None = None
    damping: bool = False
    number: int | None = None
    task: Task | None = None


@dataclass(frozen=True)
class Drop(Change):
    """Throw away what is staged for a transaction: all of it, or one part. -> Done, also when there is nothing"""

    transaction: str
    part: int | None = None


@dataclass(frozen=True)
class Staged(Operation):
    """Which parts of which transactions are staged. -> StagedParts"""


@dataclass(frozen=True)
class Recall(Operation):
    """The remembered commits after number `after`. -> Recalled"""

    after: int = 0


@dataclass(frozen=True)
class Records(Operation):
    """What the remembered commits after number `after` have recorded, without what else they are. With `era`, only
    those that were made in it. -> Recorded"""

    after: int = 0
    era: Era | None = None


@dataclass(frozen=True)
class Forget(Change):
    """Forget the commits up to number `upto`: everyone knows of them. -> Done"""

    upto: int


@dataclass(frozen=True)
class Dismiss(Change):
    """Forget the answers given to `gone`, a client that will not come back. -> Done"""

    gone: str


# ---- states that are written anew


@dataclass(frozen=True)
class Begin(Change):
    """A run is about to write its state anew: era `number` begins, and changes of its earlier ones are refused. The
    number must be above that of every era of every run here, so that it tells them all apart. -> Done"""

    run: str
    number: int


@dataclass(frozen=True)
class GetEras(Operation):
    """In which era each run is. -> Eras"""


# ---- tasks


@dataclass(frozen=True)
class Open(Change):
    """Begin a stretch of `count` tasks. Numbers of stretches grow. The open one again changes nothing; an earlier one,
    or a later one while tasks are left, is refused, unless `instead` gives those up. -> Done"""

    stretch: int
    count: int
    consistency: str
    workers: tuple[str, ...]
    instead: bool = False


@dataclass(frozen=True)
class Close(Change):
    """Deal out no tasks of the stretch that nobody has had: it ends with those that somebody has. -> Done"""

    stretch: int


@dataclass(frozen=True)
class Lease(Change):
    """Ask for the next task. A worker holds one at a time, and is given the same one until it commits. -> Leased,
    Wait or NothingLeft"""

    worker: str


@dataclass(frozen=True)
class Join(Change):
    """A worker takes part from now on; its clock starts at the slowest's. -> Done"""

    worker: str


@dataclass(frozen=True)
class Release(Change):
    """A worker is gone, or gives up: its lease is free again, and nobody waits for it. -> Done"""

    worker: str


@dataclass(frozen=True)
class GetProgress(Operation):
    """How far the stretch is. -> Progress"""
