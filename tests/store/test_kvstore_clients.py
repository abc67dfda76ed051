"""Clients that die or freeze at the worst moment: nothing is lost, nothing counts twice, and the others are told."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvstore_fleets import PATIENCE_S, LocalFleet, eventually, free_address

from shoal.comm.keys import RunKeys
from shoal.core.errors import CollectiveTimeout, ConfigError, PeerLost, UserError
from shoal.launch.session import Session
from shoal.store.answers import NothingLeft
from shoal.store.client import Link
from shoal.store.description import FleetDescription
from shoal.store.errors import ServerTimeout
from shoal.store.kvstore import KVStore
from shoal.store.operations import Task
from shoal.store.run_keys import make_run_keys
from shoal.store.session import Session as LinkSession
from shoal.store.state import Call
from shoal.store.transactions import Transactions
from shoal.testing.ranks import RankHarness

TASKS = 8


@pytest.fixture
def fleet() -> Iterator[LocalFleet]:
    with LocalFleet(servers=2) as fleet:
        yield fleet


@contextlib.contextmanager
def _store(fleet: LocalFleet, **more: Any) -> Iterator[KVStore]:
    store = KVStore(fleet.wait_ready(), key=fleet.keys, **{"deadline_s": PATIENCE_S, **more})
    try:
        yield store
    finally:
        store.close()


def _do_one(store: KVStore, worker: str) -> Task | None:
    task = store.lease(worker)
    if isinstance(task, NothingLeft):
        return None
    assert isinstance(task, Task)
    name = f"task {task.number} by {worker}"
    store.stage(name, 0, {"sum": np.full(200, 2.0**task.number)}).result(PATIENCE_S)
    store.commit(name, [0], task=task)
    return task


def _die(*rest: Any, **more: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_with_the_answer_in_hand() -> None:
    real = Link._answered

    def answered(self: Link, ticket: int, attempt: int, done: Any) -> None:
        pending = self._pending._by_ticket.get(ticket)
        if pending is not None and pending.what.startswith("commit"):
            _die()
        real(self, ticket, attempt, done)

    Link._answered = answered  # type: ignore[method-assign]


def _die_before_the_other_servers() -> None:
    Transactions._commit_on_others = _die  # type: ignore[method-assign]


def _die_before_any_server() -> None:
    Transactions.commit = _die  # type: ignore[method-assign,assignment]


DEATHS: list[Callable[[], None]] = [_die_with_the_answer_in_hand, _die_before_the_other_servers, _die_before_any_server]


@pytest.mark.ranks
def test_workers_that_die_between_push_and_acknowledgement(fleet: LocalFleet, ranks: RankHarness) -> None:
    def work(session: Session, described: Any, keys: RunKeys) -> None:
        worker = f"rank {session.world.rank}"
        store = KVStore(described, key=keys, deadline_s=PATIENCE_S)
        _do_one(store, worker)  # well
        DEATHS[session.world.rank]()
        _do_one(store, worker)

    with _store(fleet) as store:
        store.declare("sum", (200,), "float64", updater="add")
        store.open(1, TASKS, "asp", ("rank 0", "rank 1", "rank 2", "survivor"))
        with ranks.start(3, work, fleet.wait_ready(), fleet.keys) as run:
            ended = run.wait(PATIENCE_S)
            assert [rank.code for rank in ended] == [-signal.SIGKILL] * 3, run.describe()
        for rank in range(3):
            store.release(f"rank {rank}")
        store.settle(abandoned=lambda transaction: True)
        assert store.staged() == {}
        while _do_one(store, "survivor") is not None:
            pass
        assert store.progress().committed == tuple(range(TASKS))
        np.testing.assert_array_equal(store.pull("sum"), np.full(200, 2.0**TASKS - 1))  # every task, each once


@pytest.mark.ranks
def test_nobody_waits_for_a_committer_that_is_frozen_between_two_servers(fleet: LocalFleet, ranks: RankHarness) -> None:
    def freeze(session: Session, described: Any, keys: RunKeys) -> None:
        commit_on_others = Transactions._commit_on_others

        def asleep_before_it(self: Transactions, *given: Any) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)
            commit_on_others(self, *given)

        Transactions._commit_on_others = asleep_before_it  # type: ignore[method-assign]
        with contextlib.closing(KVStore(described, key=keys, deadline_s=PATIENCE_S)) as store:
            assert _do_one(store, "frozen") is not None

    with _store(fleet) as store:
        store.declare("sum", (200,), "float64", updater="add")
        store.open(1, TASKS, "asp", ("frozen", "other"))
        with ranks.start(1, freeze, fleet.wait_ready(), fleet.keys) as run:
            eventually(lambda: len(store.progress().committed) == 1, "a commit on the first server")
            while len(store.progress().committed) < TASKS:
                _do_one(store, "other")
            np.testing.assert_array_equal(store.pull("sum"), np.full(200, 2.0**TASKS - 1))
            run.signal(0, signal.SIGCONT)
            run.results(PATIENCE_S)  # what was done for it is not done again
        np.testing.assert_array_equal(store.pull("sum"), np.full(200, 2.0**TASKS - 1))


def test_what_is_committed_while_others_settle_is_not_dropped(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was thought gone commits at the worst moment: when it has been seen to have only staged."""
    with _store(fleet) as ghost, _store(fleet) as survivor:
        ghost.declare("sum", (200,), "float64", updater="add")
        ghost.stage("late", 0, {"sum": np.ones(200)}).result(PATIENCE_S)
        ghost.stage("never", 0, {"sum": np.full(200, 8.0)}).result(PATIENCE_S)
        staged = survivor.staged

        def staged_then(deadline_s: float | None = None) -> dict[str, set[int]]:
            found = staged(deadline_s)
            with monkeypatch.context() as only_first:
                only_first.setattr(ghost, "_commit_on_others", lambda *given: None)  # and then it is gone
                ghost.commit("late", [0])
            return found

        monkeypatch.setattr(survivor, "staged", staged_then)
        survivor.settle(abandoned=lambda transaction: True)
        assert staged() == {}
        np.testing.assert_array_equal(survivor.pull("sum"), np.ones(200))


@pytest.mark.ranks
def test_the_bound_holds_while_a_worker_is_frozen(fleet: LocalFleet, ranks: RankHarness) -> None:
    def freeze(session: Session, described: Any, keys: RunKeys) -> int:
        store = KVStore(described, key=keys, worker=1, workers=2, consistency="ssp:2", deadline_s=PATIENCE_S)
        store.push("x", np.ones(4))
        rounds = store.tick()
        os.kill(os.getpid(), signal.SIGSTOP)
        for _ in range(4):
            rounds = store.tick()
        store.close()
        return rounds

    with (
        _store(fleet, worker=0, workers=2, consistency="ssp:2") as store,
        ranks.start(1, freeze, _declared(store, fleet), fleet.keys) as run,
    ):
        eventually(lambda: store.rounds()["clocks"]["1"] == 1, "the round of the other worker")
        # it may begin a round while it is two ahead of the one that stands at 1, and no more
        for _ in range(1 + 2 + 1):
            store.pull("x")
            store.push("x", np.ones(4))
            store.tick()
        with pytest.raises(CollectiveTimeout, match="worker 1"):
            store.pull("x", deadline_s=1.0)
        run.signal(0, signal.SIGCONT)
        store.pull("x")
        assert run.results(PATIENCE_S) == [5]
        assert max(int(lead) for lead in store.rounds()["leads"]) <= 2


def _declared(store: KVStore, fleet: LocalFleet) -> Any:
    store.declare("x", (4,), "float64", updater="add")
    return fleet.wait_ready()


@pytest.mark.ranks
def test_a_frozen_server_is_named(fleet: LocalFleet) -> None:
    with _store(fleet, deadline_s=1.0) as store:
        store.declare("x", (400,), "float64", updater="add")
        fleet.freeze(fleet.primary(1))
        with pytest.raises(ServerTimeout, match=r"push of 'x' for server 1 \(127\.0\.0\.1"):
            store.push("x", np.ones(400))
        fleet.wake(fleet.primary(1))
        eventually(lambda: store.get("x", deadline_s=PATIENCE_S).min() == 1, "what was on its way")


@pytest.mark.ranks
def test_no_one_gets_in_without_the_key(fleet: LocalFleet, tmp_path: Path) -> None:
    described = fleet.wait_ready()
    address = described.servers[0][0]
    with pytest.raises(UserError, match="key"):
        KVStore(described)
    with pytest.raises(UserError, match="key"):
        KVStore(address)
    stranger = KVStore(described, key=RunKeys.make(), deadline_s=PATIENCE_S)
    with contextlib.closing(stranger), pytest.raises(UserError, match="key"):
        stranger.set("x", np.ones(3))
    with pytest.raises(UserError, match="key"):
        KVStore(address, key=RunKeys.make(), deadline_s=PATIENCE_S)
    with contextlib.closing(KVStore(address, key=fleet.keys, deadline_s=PATIENCE_S)) as store:
        store.set("x", np.ones(3))
        assert store.keys == ("x",)
    path = tmp_path / "peers.key"
    keys = make_run_keys(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert make_run_keys(path) == keys  # whoever comes second gets the same
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        KVStore(free_address(), key=path, mode="worker", worker=0, workers=1)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"consistency": "ssp"}, "ssp:4"),
        ({"consistency": "bsp"}, "worker and workers"),
        ({"consistency": "basp"}, "did you mean"),
        ({"worker": 2, "workers": 2}, "numbered from 0"),
        ({"workers": 0}, "1 or more"),
        ({"deadline_s": 0}, "above 0"),
        ({"mode": "peer"}, "HOST:PORT"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        KVStore(tmp_path, **given)


@pytest.mark.unit
def test_no_fleet_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shoal kvstore"):
        KVStore(tmp_path)
    (tmp_path / "fleet.json").write_text("{}")
    with pytest.raises(UserError):
        KVStore(tmp_path)


@pytest.mark.ranks
def test_a_worker_that_is_lost_is_left_out_by_its_peers(ranks: RankHarness) -> None:
    def work(session: Session, address: str, keys: RunKeys) -> list[float]:
        rank = session.world.rank
        store = KVStore(address, key=keys, mode="worker", worker=rank, workers=3, deadline_s=PATIENCE_S)
        store.declare("first", (1,), "float64", updater="add", whole=True)
        store.push("first", np.ones(1))
        eventually(lambda: store.get("first")[0] >= 3, "the pushes of all")
        if rank == 2:
            _die()
        with pytest.raises(PeerLost, match="worker 2"):
            eventually(lambda: store.pull("first", worker=2) is None, "the end of worker 2")
        store.push("first", np.ones(1))  # whoever owns it lives: a key of one element lies with the first
        if rank == 1:
            eventually(lambda: store.get("first")[0] == 5, "the pushes of the two that are left")
            store.push("first", np.ones(1))
        else:  # it owns the key: it stays until the other has seen that
            eventually(lambda: store.get("first")[0] == 6, "the last word of the other")
        store.close()
        return [float(store.deadline_s)]

    with ranks.start(3, work, free_address(), RunKeys.make()) as run:
        ended = run.wait(PATIENCE_S)
        assert [rank.code for rank in ended] == [0, 0, -signal.SIGKILL], run.describe()


@pytest.mark.unit
def test_a_peer_that_died_before_anybody_came_to_it_is_lost_at_once() -> None:
    address = free_address()  # told by one that is not there any more
    session = LinkSession(lambda: FleetDescription(((address,),), "auto"), RunKeys.make().client(), "worker 0")
    try:
        link = Link(session, 0, [address], "worker 2", lasting=False)
        with pytest.raises(PeerLost, match="worker 2"):
            link.submit(Call("directory", {}), "look", PATIENCE_S).result(PATIENCE_S / 2)
    finally:
        session.close()


@pytest.mark.ranks
def test_a_frozen_peer_is_named(ranks: RankHarness) -> None:
    def work(session: Session, address: str, keys: RunKeys) -> str:
        rank = session.world.rank
        store = KVStore(address, key=keys, mode="worker", worker=rank, workers=3, deadline_s=PATIENCE_S)
        store.declare("x", (3,), "float64", updater="add", whole=True)
        store.push("x", np.ones(3))
        eventually(lambda: store.get("x")[0] >= 3, "the pushes of all")
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
            return ""
        try:
            while True:
                store.push("x", np.ones(3), deadline_s=8.0)  # the owner says who it is before that, however busy
        except CollectiveTimeout as error:
            return str(error)

    with ranks.start(3, work, free_address(), RunKeys.make()) as run:
        for rank in range(2):
            run.wait_for(rank)
        said = [run.ranks[rank].outcome() for rank in range(2)]
        for outcome in said:
            assert outcome is not None
            assert "push of 'x' for worker 2" in outcome[1], run.describe()


@pytest.mark.unit
def test_workers_that_do_not_come_are_named() -> None:
    with pytest.raises(CollectiveTimeout, match="worker 1, worker 2"):
        KVStore(free_address(), key=RunKeys.make(), mode="worker", worker=0, workers=3, deadline_s=0.5)
    with pytest.raises(ConfigError, match="worker and workers"):
        KVStore(free_address(), key=RunKeys.make(), mode="worker")
