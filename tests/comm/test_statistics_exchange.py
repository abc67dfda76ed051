"""What batch normalisation exchanges, on every backend: combined by rank, also with workers that have no samples; a
worker that dies frees the others."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch
from comm_ranks import await_step, join

from shoal.core.errors import CollectiveTimeout, PeerLost
from shoal.launch.session import Session
from shoal.strategies.statistics_exchange import Exchange, Kind
from shoal.testing.ranks import RankHarness

pytestmark = [pytest.mark.contract, pytest.mark.ranks]
on_all = pytest.mark.parametrize("backend", ["shm", "gloo", "hierarchical 02/13"])
CHANNELS = 150  # of which there is room for 64 at a time
IDLE = 2  # has no samples


def exchange_twice(session: Session, backend: str) -> None:
    exchange = Exchange(join(session, backend), 64, torch.float64)
    rank, size = exchange.rank, exchange.size
    for step in range(3):
        if rank == IDLE:
            exchange.attend()
            continue
        for call, kind in ((1, Kind.FORWARD), (1, Kind.BACKWARD)):
            mine = np.arange(2.0 * CHANNELS).reshape(2, CHANNELS) + 1000 * rank + step
            counts, everyone = exchange.sums(kind, call, rank + 10, mine)
            assert counts.tolist() == [0 if r == IDLE else r + 10 for r in range(size)]
            for r, theirs in enumerate(everyone):
                assert np.array_equal(theirs, mine + 1000 * (r - rank) if r != IDLE else 0 * mine)
        exchange.end()
        assert exchange.present == (0, 1, 3)


@on_all
def test_rows_of_all_workers_come_in_order(ranks: RankHarness, backend: str) -> None:
    ranks.run(4, exchange_twice, backend)


def wait_for_the_dead(session: Session, backend: str) -> str:
    exchange = Exchange(join(session, backend, 60.0), 64, torch.float32)
    exchange.end()
    session.control.enter(session.world.rank, 7, "start")
    if session.world.rank == 1:
        signal.pause()
    try:
        exchange.attend() if session.world.rank == IDLE else exchange.sums(Kind.FORWARD, 1, 4, np.ones((2, 3)))
    except PeerLost:
        return "lost"
    return "done"


@on_all
def test_a_worker_that_dies_frees_the_others(ranks: RankHarness, backend: str) -> None:
    with ranks.start(4, wait_for_the_dead, backend) as run:
        await_step(run.control, range(4), 7)
        run.signal(1, signal.SIGKILL)
        run.wait_for(1)
        run.control.break_view(1)
        for rank in (0, 2, 3):
            assert run.wait_for(rank, 25.0).outcome() == (True, "lost"), run.describe()


def wait_for_one_that_does_not_come(session: Session) -> tuple[str, tuple[int, ...]]:
    exchange = Exchange(join(session, "shm", 1.0), 64, torch.float32)
    if session.world.rank == 1:
        return "", ()
    try:
        exchange.sums(Kind.FORWARD, 1, 4, np.ones((2, 3)))
    except CollectiveTimeout as late:
        return late.operation, late.missing
    return "done", ()


def test_a_worker_that_does_not_come_is_named(ranks: RankHarness) -> None:
    assert ranks.run(2, wait_for_one_that_does_not_come)[0] == ("the statistics of batch normalisation", (1,))
