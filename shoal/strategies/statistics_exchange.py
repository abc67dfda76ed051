"""What workers tell each other while a global batch goes through layers of batch normalisation.

Each layer that is called, and each that goes backward, is one exchange: every worker gives a row of two numbers for
each channel, and gets those of all. Rows are equally long, whatever the layer, and say what they are. So a worker
without samples, which does not run the model, takes part without knowing which layers there are, and workers whose
models go other ways are found out instead of being added up. The end of a step is an exchange, too.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.comm.group import Group
from shoal.core.errors import ConfigError

Numbers = npt.NDArray[np.float64]
_HEAD = 5  # whole numbers at the beginning of a row: see `Row`
_WHAT = "the statistics of batch normalisation"


class Kind(enum.IntEnum):
    """What a worker is doing."""

    ABSENT = 0  # nothing: it has no samples in this batch
    FORWARD = 1
    BACKWARD = 2
    END = 3  # its backward is done


@dataclass(frozen=True)
class Row:
    """The head of a row: layer `call` of the step, with so many `channels`, from `first` on; `count` values of each
    went into the numbers."""

    kind: Kind
    call: int = 0
    channels: int = 0
    first: int = 0
    count: int = 0

    @property
    def place(self) -> tuple[int, int, int, int]:
        """In what all workers that compute must agree."""
        return self.kind, self.call, self.channels, self.first

    def __str__(self) -> str:
        if self.kind is Kind.END:
            return "had done its last layer"
        way = "forward" if self.kind is Kind.FORWARD else "backward"
        return f"went {way} through normalisation {self.call}, of {self.channels} channels"


class Exchange:
    """Exchanges within `group`, of which nothing else may make use, for layers of `dtype` with up to `width` channels
    each; wider ones take several. Every call is collective and has the group's deadline."""

    def __init__(self, group: Group, width: int, dtype: torch.dtype) -> None:
        self.size, self.rank = group.size, group.rank
        self._group, self._width = group, width
        length = _HEAD * 8 + 2 * width * dtype.itemsize
        self._own = torch.zeros(length, dtype=torch.uint8)
        self._all = torch.zeros(self.size, length, dtype=torch.uint8)
        self._parts = list(self._all.unbind())
        kind: npt.DTypeLike = np.float64 if dtype == torch.float64 else np.float32
        self._head, self._numbers = self._cut(self._own.numpy()[None], kind)
        self._heads, self._all_numbers = self._cut(self._all.numpy(), kind)
        self.waited_s = 0.0
        self.present: tuple[int, ...] = ()  # the workers that computed, in the last exchange

    def _cut(self, rows: npt.NDArray[np.uint8], kind: npt.DTypeLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Heads and numbers of `rows`, where they lie."""
        heads, numbers = rows[:, : _HEAD * 8], rows[:, _HEAD * 8 :]
        return heads.view(np.int64), numbers.view(kind).reshape(len(rows), 2, self._width)

    def sums(self, kind: Kind, call: int, count: int, numbers: Numbers) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Give two rows of numbers that `count` values went into; returns the counts of all workers and their numbers,
        by rank: ``[worker, 2, channels]``, zero for those without samples."""
        channels, counts = numbers.shape[1], np.zeros(self.size, dtype=np.int64)
        everyone = np.empty((self.size, 2, channels))
        for first in range(0, channels, self._width):
            stop = min(first + self._width, channels)
            self._numbers[0, :, : stop - first] = numbers[:, first:stop]
            rows = self._meet(Row(kind, call, channels, first, count))
            counts[:] = [row.count for row in rows]
            everyone[:, :, first:stop] = self._all_numbers[:, :, : stop - first]
        absent = [rank for rank in range(self.size) if rank not in self.present]
        everyone[absent] = 0.0
        return counts, everyone

    def end(self) -> None:
        """This worker has computed all of its step."""
        self._meet(Row(Kind.END))

    def attend(self) -> None:
        """Take part for a whole step without samples."""
        while True:
            self._meet(Row(Kind.ABSENT))
            if not self.present or self._heads[self.present[0], 0] == Kind.END:
                return

    def _meet(self, mine: Row) -> list[Row]:
        """Everyone's row. Raises `ConfigError`, on all of them, where those that compute are not at the same place."""
        self._head[0] = (mine.kind, mine.call, mine.channels, mine.first, mine.count)
        began = time.perf_counter()
        self._group.start_gather(self._parts, self._own, _WHAT)()
        self.waited_s += time.perf_counter() - began
        rows = [Row(Kind(kind), *rest) for kind, *rest in self._heads.tolist()]
        self.present = tuple(rank for rank, row in enumerate(rows) if row.kind is not Kind.ABSENT)
        for rank in self.present:
            first = self.present[0]
            if rows[rank].place != rows[first].place:
                raise ConfigError(
                    f"statistics=global cannot be kept: worker {first} {rows[first]} while worker {rank} {rows[rank]}. "
                    "The model takes other ways for other samples: use statistics=grain"
                )
        return rows
