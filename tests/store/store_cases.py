"""A shard to ask, in few words."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.store import answers
from shoal.store import operations as ops
from shoal.store.keys import DenseKey, Key, Slice, SparseKey
from shoal.store.shard import Shard

Array = npt.NDArray[Any]
A = TypeVar("A", bound=answers.Answer)

DENSE = DenseKey("w", (2, 3), "float64")
TABLE = SparseKey("t", 10, (2,), "float64")
W, T = "w[0:6]", "t[4:10]"


def whole(key: Key) -> Slice:
    return Slice(key, 0, key.units)


class Client:
    """Numbers its changes, and insists on the answer that it expects."""

    def __init__(self, shard: Shard | None = None, name: str = "me") -> None:
        self.shard = shard or Shard()
        self.name = name
        self.sequence = 0

    def ticket(self) -> dict[str, Any]:
        self.sequence += 1
        return {"client": self.name, "sequence": self.sequence}

    def change(self, kind: type[ops.Change], *given: Any, **named: Any) -> answers.Answer:
        return self.shard.do(kind(*given, **named, **self.ticket()))

    def done(self, kind: type[ops.Change], *given: Any, **named: Any) -> answers.Done:
        return self._be(answers.Done, self.change(kind, *given, **named))

    def refused(self, kind: type[ops.Change], *given: Any, **named: Any) -> answers.Refused:
        return self._be(answers.Refused, self.change(kind, *given, **named))

    def declare(self, updater: str = "add", **options: Any) -> None:
        """`w` whole, and rows 4 to 9 of `t`."""
        slices = (whole(DENSE), Slice(TABLE, 4, 10))
        self.done(ops.Declare, tuple(ops.Holding(one, updater, options) for one in slices))

    def push(self, *updates: ops.Update, **named: Any) -> answers.Done:
        return self.done(ops.Push, updates, **named)

    def stage(self, transaction: str, part: int, *updates: ops.Update) -> None:
        self.done(ops.Stage, transaction, part, updates)

    def commit(self, transaction: str, *parts: int, **named: Any) -> answers.Committed:
        made = self.change(ops.Commit, transaction=transaction, parts=parts, **named)
        return self._be(answers.Committed, made)

    def pull(self, where: str, **named: Any) -> answers.Found:
        named = {name: np.array(value) if name == "rows" else value for name, value in named.items()}
        pulled = self._be(answers.Pulled, self.shard.do(ops.Pull((ops.Wanted(where, **named),))))
        return pulled.found[0]

    def values(self, where: str = W) -> list[Any]:
        found = self.pull(where).values
        assert found is not None
        listed: list[Any] = found.tolist()
        return listed

    @staticmethod
    def _be(kind: type[A], answer: answers.Answer) -> A:
        assert isinstance(answer, kind), answer
        return answer


def dense(*values: float, where: str = W) -> ops.Update:
    return ops.Update(where, np.array(values))


def ones(times: float = 1.0) -> ops.Update:
    return ops.Update(W, np.full(6, times))


def rows(*named: int, times: float = 1.0) -> ops.Update:
    return ops.Update(T, np.full((len(named), 2), times), np.array(named))
