"""One operation and one answer of every kind, and ways to spoil them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from store_cases import DENSE, TABLE, W, ones, rows, whole

from shoal.store import answers
from shoal.store import operations as ops

TICKET: dict[str, Any] = {"client": "me", "sequence": 7, "era": ops.Era("0.0", 3)}
_UPDATES = (ones(), rows(4, 5))
_WANTED = (ops.Wanted(W, since=3), ops.Wanted("t[4:10]", np.array([4, 5])), ops.Wanted(W, span=(1, 2)))
_SHAPING = ops.Shaping(2.0, 0.5, 0.1, 0.25, (-1.0, 1.0))
_COMMIT = ops.Commit(
    transaction="s",
    parts=(0, 3),
    rates=(0.1, 0.2),
    shaping=_SHAPING,
    record=b"\x00\xffrecord",
    read_version=4,
    damping=True,
    number=9,
    task=ops.Task(1, 2, "worker"),
    **TICKET,
)
VALUES: list[Any] = [
    ops.Declare((ops.Holding(whole(DENSE), "sgd", {"momentum": 0.9}, 1), ops.Holding(whole(TABLE))), **TICKET),
    ops.Remove((W,), **TICKET),
    ops.Set(_UPDATES, **TICKET),
    ops.Push(_UPDATES, (0.1,), _SHAPING, **TICKET),
    ops.PushPull(_UPDATES, _WANTED, (0.1,), _SHAPING, **TICKET),
    ops.Pull(_WANTED),
    ops.GetState(W),
    ops.SetState(W, {"step": np.array([3]), "mean": np.ones(6, np.float32)}, **TICKET),
    ops.Stage("s", 3, _UPDATES, **TICKET),
    ops.Norms("s", (0, 1), _SHAPING),
    _COMMIT,
    ops.Drop("s", **TICKET),
    ops.Staged(),
    ops.Recall(3),
    ops.Records(3, ops.Era("0.0", 2)),
    ops.Forget(3, **TICKET),
    ops.Dismiss("other", **TICKET),
    ops.Begin("0.0", 4, **TICKET),
    ops.GetEras(),
    ops.Open(3, 10, "ssp:4", ("a", "b"), True, **TICKET),
    ops.Close(3, **TICKET),
    ops.Lease("a", **TICKET),
    ops.Join("a", **TICKET),
    ops.Release("a", **TICKET),
    ops.GetProgress(),
    answers.Refused(1, "board", "why"),
    answers.Done(1),
    answers.Pulled(1, (answers.Found(W, np.arange(3.0), np.array([1, 2, 3]), 1), answers.Found(W, None, None, 1))),
    answers.UpdaterState(1, {"mean": np.ones(3)}),
    answers.Squares(1, 0.5),
    answers.Eras(1, {"0.0": 3}),
    answers.Committed(1, 2, 3, 0.25, True),
    answers.Recalled(4, (answers.Logged(2, 3, _COMMIT),), 2),
    answers.Recorded.of(4, (answers.Logged(2, 3, _COMMIT),)),
    answers.StagedParts(1, (("s", (0, 1)),)),
    answers.Leased(1, 2, 3),
    answers.Wait(1, "bound", ("a", "b")),
    answers.NothingLeft(1, 2),
    answers.Progress(1, 2, 3, (0, 1), {"a": 2}, {"a": 1}, {0: 4, 3: 1}, {0: 5}),
]


_JUNK = [None, -1, 10**30, 0.5, float("nan"), "", "w[0:6]", [], [[1]], {}, {"array": 0}, {"bytes": 0}, {"map": []}]


def spoiled(data: Any, chance: random.Random) -> Any:
    """The same with one thing in it replaced by something else."""
    if isinstance(data, dict) and data and chance.random() < 0.95:
        name = chance.choice([name for name in data if name != "kind"] or ["kind"])
        return {**data, name: spoiled(data[name], chance)}
    if isinstance(data, list) and data and chance.random() < 0.9:
        at = chance.randrange(len(data))
        return [*data[:at], spoiled(data[at], chance), *data[at + 1 :]]
    return chance.choice(_JUNK)
