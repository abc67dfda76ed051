"""`shoal.KVStore`: arrays that many processes share. NumPy in and out; no PyTorch needed.

    store = shoal.KVStore("kvstore")            # the directory that `shoal kvstore` has written
    store.set("counts", np.zeros(1000))
    store.declare("table", (1_000_000, 16), sparse=True, updater="add")
    store.push("table", rows=[3, 17], values=np.ones((2, 16)))
    store.pull("table", rows=[3, 17])

Every call has a deadline and names whom it waits for. A change that is acknowledged has been made once; while servers
die and are replaced, calls take longer and nothing is lost or done twice. Calls ending in ``_async`` return futures at
once, so that computing goes on meanwhile; what is pushed from one thread is applied in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shoal.comm.keys import ClientKeys, RunKeys
from shoal.core.consistency import ASP, Consistency, parse
from shoal.core.errors import ConfigError, UserError
from shoal.store.checking import Array, Rows
from shoal.store.directory import Declaration
from shoal.store.finding import Fleet, find
from shoal.store.futures import after
from shoal.store.keys import DenseKey, SparseKey
from shoal.store.modes import Membership, make_mode
from shoal.store.waiting import Waiting

_LEAVE_S = 2.0


class KVStore(Waiting):
    """A client of a store. May be used from any thread; give it back with `close` or a ``with`` statement.

    `fleet`: the directory (or `fleet.json`) that `shoal kvstore` has written, or one server's "HOST:PORT" with `key`,
    the path of the key file. In the modes without servers: the "HOST:PORT" where worker 0 listens and the others find
    it. `worker` and `workers`: this one's number, and how many there are; needed for a `consistency` that makes workers
    wait for each other ("bsp", "ssp:4") and in the modes without servers. All workers of a store must give the same
    `mode`, `consistency` and `placement`.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        key: str | Path | ClientKeys | RunKeys | None = None,
        worker: int | None = None,
        workers: int | None = None,
        mode: str = "server",
        consistency: Consistency | str = "asp",
        placement: str = "even",
        deadline_s: float = 60.0,
    ) -> None:
        _check_numbers(worker, workers, deadline_s)
        agreed = parse(consistency) if isinstance(consistency, str) else consistency
        self.mode = mode
        if not isinstance(agreed, ASP) and (worker is None or workers is None):
            raise ConfigError(f"consistency {agreed} makes workers wait for each other: give worker and workers")
        name = f"worker {worker}" if worker is not None else "client"
        place = find(fleet, key, mode, deadline_s)
        membership = Membership(
            name, worker, workers, deadline_s, place.describe, place.keys, place.address, place.run_keys,
            place.encrypt, self._on_lost_state,
        )  # fmt: skip
        super().__init__(make_mode(mode, membership), deadline_s, placement, agreed, worker, workers)
        try:
            self._enrol()
        except BaseException:
            self._mode.close()
            raise

    # ---- keys

    def declare(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike = "float32",
        *,
        sparse: bool = False,
        updater: str = "assign",
        options: Mapping[str, Any] | None = None,
        group: int = 0,
        whole: bool = False,
    ) -> None:
        """Make room for a key, filled with zeros. `sparse`: a table, of which single rows are read and written.
        `updater` says what the servers do with what is pushed: assign, add, sgd, adam, average, or your own by name;
        `options` are its own. `whole`: never cut it. For many keys, `register` places them evenly together."""
        kind = np.dtype(dtype).name
        if sparse and not shape:
            raise UserError(f"the table {key!r} has no rows: give its shape as (rows, …)")
        made = (
            SparseKey(key, shape[0], tuple(shape[1:]), kind, whole)
            if sparse
            else DenseKey(key, tuple(shape), kind, whole)
        )
        self.register([Declaration(made, updater, dict(options or {}), group)])

    def set(
        self, key: str, values: npt.ArrayLike, rows: npt.ArrayLike | None = None, deadline_s: float | None = None
    ) -> None:
        """Overwrite a key, or rows of a table. A key that nobody has declared is declared as what is given."""
        self._wait(self.set_async(key, values, rows, deadline_s), deadline_s)

    def set_async(
        self, key: str, values: npt.ArrayLike, rows: npt.ArrayLike | None = None, deadline_s: float | None = None
    ) -> Future[None]:
        """As `set`; `values` must not change before the future is done."""
        self._mode.writer(0)
        if rows is None and key not in self._atlas.declarations and key not in self.keys:
            array = np.asarray(values)
            self.declare(key, array.shape, array.dtype)
        return self.set_many({key: values if rows is None else Rows(rows, values)}, deadline_s)

    def get(self, key: str, rows: npt.ArrayLike | None = None, deadline_s: float | None = None) -> Array:
        """Read a key, or rows of a table, as it is now, without waiting for any other worker."""
        return self._wait(self.pull_many([key], rows=rows, deadline_s=deadline_s, wait=False), deadline_s)[key]

    # ---- pushing and pulling

    def push(
        self, key: str, values: npt.ArrayLike, rows: npt.ArrayLike | None = None, deadline_s: float | None = None
    ) -> None:
        """Have the key's updater apply `values`: to all of it, or to `rows` of a table (repeated ones add up)."""
        self._wait(self.push_async(key, values, rows, deadline_s), deadline_s)

    def push_async(
        self, key: str, values: npt.ArrayLike, rows: npt.ArrayLike | None = None, deadline_s: float | None = None
    ) -> Future[None]:
        """As `push`; `values` must not change before the future is done."""
        return self.push_many({key: values if rows is None else Rows(rows, values)}, deadline_s)

    def pull(
        self,
        key: str,
        rows: npt.ArrayLike | None = None,
        *,
        worker: int | None = None,
        out: Array | None = None,
        deadline_s: float | None = None,
    ) -> Array:
        """Read a key, or rows of a table, once the consistency allows it. `worker`: that worker's own copy, in the
        modes that keep copies with workers. `out`: where to put it. Raises `WorkersBehind`, a `CollectiveTimeout`, if
        other workers do not get on in time."""
        return self._wait(self.pull_async(key, rows, worker=worker, out=out, deadline_s=deadline_s), deadline_s)

    def pull_async(
        self,
        key: str,
        rows: npt.ArrayLike | None = None,
        *,
        worker: int | None = None,
        out: Array | None = None,
        deadline_s: float | None = None,
    ) -> Future[Array]:
        """As `pull`; the array is there when the future is done."""
        given = {key: out} if out is not None else None
        return after(
            self.pull_many([key], rows=rows, worker=worker, out=given, deadline_s=deadline_s), lambda found: found[key]
        )

    def push_pull(
        self, key: str, values: npt.ArrayLike, rows: npt.ArrayLike | None = None, *, out: Array | None = None,
        deadline_s: float | None = None,
    ) -> Array:  # fmt: skip
        """Push, and read the outcome, in one round trip. Does not wait for other workers."""
        return self._wait(self.push_pull_async(key, values, rows, out=out, deadline_s=deadline_s), deadline_s)

    def push_pull_async(
        self, key: str, values: npt.ArrayLike, rows: npt.ArrayLike | None = None, *, out: Array | None = None,
        deadline_s: float | None = None,
    ) -> Future[Array]:  # fmt: skip
        """As `push_pull`; `values` must not change before the future is done."""
        given = {key: values if rows is None else Rows(rows, values)}
        where = {key: out} if out is not None else None
        return after(self.push_pull_many(given, rows=rows, out=where, deadline_s=deadline_s), lambda found: found[key])

    def snapshot(self, deadline_s: float | None = None) -> str:
        """Have the servers write a snapshot, and wait for it; returns where it lies on their host. Raises `UserError`
        if they keep none."""
        sent = self._mode.desk().ask("snapshot", "snapshot", self._deadline(deadline_s))
        return str(self._wait(sent, deadline_s).head["snapshot"])

    # ---- the end

    def close(self) -> None:
        """Give everything back. What is under way fails. May be called twice."""
        self._mode.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
                if self._enrolled:
                    self.leave(deadline_s=_LEAVE_S)
        finally:
            self.close()


def _check_numbers(worker: int | None, workers: int | None, deadline_s: float) -> None:
    if workers is not None and workers < 1:
        raise ConfigError(f"a store of {workers} workers cannot be: give 1 or more")
    if worker is not None and (worker < 0 or (workers is not None and worker >= workers)):
        raise ConfigError(f"worker {worker} is none of {workers} workers: they are numbered from 0")
    if deadline_s <= 0:
        raise ConfigError(f"a deadline of {deadline_s} s cannot be met: give a time above 0")


__all__ = ["KVStore", "Rows"]
