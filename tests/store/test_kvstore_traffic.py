"""What calls of a client cost: bytes go by what is asked for, and what can be one round trip is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from kvstore_fleets import PATIENCE_S, LocalFleet

from shoal.comm.bulk import BulkClient, Message
from shoal.store.kvstore import KVStore

pytestmark = pytest.mark.contract

WIDTH = 16
FEW, MANY = 1000, 10_000  # rows
SMALL, LARGE = 20_000, 200_000  # tables


@pytest.fixture
def store() -> Iterator[KVStore]:
    with (
        LocalFleet(servers=2) as fleet,
        contextlib.closing(KVStore(fleet.wait_ready(), key=fleet.keys, deadline_s=PATIENCE_S)) as store,
    ):
        yield store


def cost(store: KVStore, call: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that a call sends and receives."""
    sent, received = store.bytes_sent, store.bytes_received
    call()
    return store.bytes_sent - sent, store.bytes_received - received


def test_bytes_go_by_the_rows_and_not_by_the_table(store: KVStore) -> None:
    pushing, pulling = {}, {}
    for size in (SMALL, LARGE):
        store.declare(f"{size}", (size, WIDTH), sparse=True, updater="add")
        for count in (FEW, MANY):
            rows, values = np.arange(0, size, size // count), np.ones((count, WIDTH), np.float32)
            pushing[size, count], _ = cost(store, lambda: store.push(f"{size}", values, rows=rows))  # noqa: B023
            pulling[size, count] = cost(store, lambda: store.pull(f"{size}", rows=rows))  # noqa: B023
            assert len(rows) == count
            assert pushing[size, count] >= values.nbytes
            assert pulling[size, count][1] >= values.nbytes
    for costs in (
        pushing,
        {what: sent for what, (sent, _) in pulling.items()},
        {what: received for what, (_, received) in pulling.items()},
    ):
        assert costs[SMALL, MANY] == pytest.approx(10 * costs[SMALL, FEW], rel=0.1)
        assert costs[LARGE, FEW] == pytest.approx(costs[SMALL, FEW], rel=0.1)
        assert costs[LARGE, MANY] == pytest.approx(costs[SMALL, MANY], rel=0.1)


def test_pushing_and_pulling_together_is_one_round_trip(store: KVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.declare("x", (3,), "float64", updater="add", whole=True)
    store.declare("table", (100, 4), "float64", sparse=True, updater="add", whole=True)
    store.get("x")
    asked: list[Message] = []
    submit = BulkClient.submit

    def noted(self: BulkClient, message: Message, *rest: Any) -> Future[Message]:
        if message.head["k"] == "ask":  # and not whether a server is still there
            asked.append(message)
        return submit(self, message, *rest)

    def trips(call: Callable[[], Any]) -> int:
        asked.clear()
        call()
        return len(asked)

    monkeypatch.setattr(BulkClient, "submit", noted)
    rows = [7, 93]
    assert trips(lambda: store.push("x", np.ones(3))) == trips(lambda: store.pull("x")) == 1
    assert trips(lambda: store.push_pull("x", np.ones(3))) == 1
    assert trips(lambda: store.push_pull("table", np.ones((2, 4)), rows=rows)) == 1
    assert store.pull("x").tolist() == [2.0] * 3
    assert store.pull("table", rows=rows).tolist() == [[1.0] * 4] * 2
