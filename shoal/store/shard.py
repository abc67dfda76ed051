"""The state machine of one server: operations in, answers out, and nothing else.

No clock, no chance, no input or output: two shards that are given the same operations in the same order hold the same
bytes. That is what a backup is.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shoal.store import dumping
from shoal.store import operations as ops
from shoal.store.answered import Answered
from shoal.store.answers import Answer, Done, Refused, Wait
from shoal.store.board import Board
from shoal.store.board import Wait as BoardWait
from shoal.store.committing import Committing
from shoal.store.dealing import Dealing
from shoal.store.eras import Eras
from shoal.store.holdings import Holdings, Ways
from shoal.store.refusal import Refusal

Array = npt.NDArray[Any]


class Shard:
    """One server's slices, staged parts, remembered commits, answers, eras and board. For one thread.

    `do` does not raise for what a client asks: a refusal is an answer. Only an updater of the user's own may raise, and
    may leave the shard half changed: the error goes through, and every later operation raises it again.
    """

    def __init__(self) -> None:
        self.holdings = Holdings()
        self.board = Board()
        self.committing = Committing(self.holdings, self.board)
        self.answered = Answered()
        self.eras = Eras(self.holdings)
        dealing = Dealing(self.holdings, self.board)
        self._ways: Ways = {
            **self.holdings.ways(),
            **self.committing.ways(),
            **dealing.ways(),
            **self.eras.ways(),
            ops.Dismiss: self._dismiss,
        }

    @property
    def version(self) -> int:
        """Counts whatever changed values: commits, pushes, sets."""
        return self.holdings.version

    @property
    def commits(self) -> int:
        """The number of the last commit."""
        return self.committing.commits

    def do(self, operation: ops.Operation) -> Answer:
        """Carry out one operation. See `shoal.store.operations` for what each does and what it is answered with."""
        if self.holdings.broken is not None:
            raise self.holdings.broken
        if not isinstance(operation, ops.Change):
            return self._try(operation)
        answer = self.answered.find(operation, self.version)
        if answer is None:
            answer = self._try(operation)
            self.answered.keep(operation, answer)
        if isinstance(operation, ops.PushPull) and not isinstance(answer, Refused):
            return self._try(ops.Pull(operation.wanted))
        return answer

    def _try(self, operation: ops.Operation) -> Answer:
        try:
            if isinstance(operation, ops.Change):
                self.eras.check(operation)
            return self._ways[type(operation)](operation)
        except Refusal as no:
            return Refused(self.version, no.reason, no.detail)

    def would_wait(self, lease: ops.Lease) -> Wait | None:
        """The `Wait` that a lease would be answered with now; None where it is anything else, and for a repeated one,
        which gets its stored answer. Changes nothing: a server may let the request wait instead of the worker."""
        if self.answered.find(lease, self.version) is not None:
            return None
        offer = self.board.offer(lease.worker)
        return Wait(self.version, offer.cause, offer.workers) if isinstance(offer, BoardWait) else None

    def _dismiss(self, operation: ops.Dismiss) -> Answer:
        self.answered.dismiss(operation.gone)
        return Done(self.version)

    # ---- memory

    def lend(self, where: str, dtype: str | None = None) -> Array:
        """An array of the shape of a slice, with anything in it, to receive a part into. A `Stage` whose update is this
        very array keeps it instead of a copy: from then on it is the shard's. Or `give_back`. Raises `KeyError`."""
        held = self.holdings.held[where]
        return self.holdings.pool.lend(held.values.shape, np.dtype(dtype) if dtype else held.dtype)

    def give_back(self, array: Array) -> None:
        """What was lent is not needed after all."""
        self.holdings.pool.give_back(array)

    # ---- the whole state

    def dump(self, copy: bool = True) -> tuple[dict[str, Any], dict[str, Array]]:
        """The whole state: plain data that JSON and msgpack can hold, and arrays by name. Without `copy` the arrays are
        views, good until the next change."""
        meta, arrays = dumping.dump(self.holdings, self.committing, self.board, self.eras, self.answered)
        return meta, {name: array.copy() for name, array in arrays.items()} if copy else arrays

    @classmethod
    def load(cls, meta: dict[str, Any], arrays: dict[str, Array], copy: bool = True) -> Self:
        """A shard in the state that was dumped. Without `copy` it takes the arrays as its own."""
        shard = cls()
        own = {name: array.copy() for name, array in arrays.items()} if copy else arrays
        dumping.load(meta, own, shard.holdings, shard.committing, shard.board, shard.eras)
        shard.answered = Answered.load(meta["answers"])
        return shard

    def digest(self) -> str:
        """A hash of the whole state: equal for a primary and its backup."""
        return dumping.digest(*self.dump(copy=False))
