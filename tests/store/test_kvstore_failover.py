"""Real server processes, killed and frozen under load: every acknowledged push is there once, and work goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kvstore_fleets import CALM_S, PATIENCE_S, LocalFleet, RealFleet, eventually, real_fleet

from shoal.comm.bulk import BulkClient, Message, RequestFailed
from shoal.store.client import Link
from shoal.store.feed import Feed
from shoal.store.keys import DenseKey, Slice
from shoal.store.kvstore import KVStore
from shoal.store.operations import Pull, Push, Update, Wanted
from shoal.store.replication import Gate
from shoal.store.state import Command, pack_command

COUNT = Slice(DenseKey("count", (64,), "float64"), 0, 64)


class Load:
    """Pushes from several threads, as fast as they are acknowledged."""

    def __init__(self, store: KVStore, threads: int = 2) -> None:
        self.acknowledged = 0
        self._store = store
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._push) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _push(self) -> None:
        try:
            while not self._stop.is_set():
                self._store.push("count", np.ones(64))
                with self._lock:
                    self.acknowledged += 1
        except BaseException as error:
            self._errors.append(error)

    def wait_for(self, more: int) -> None:
        """Wait until so many more are acknowledged."""
        until = self.acknowledged + more
        eventually(lambda: self.acknowledged >= until or self._errors, f"{more} more acknowledgements")
        assert not self._errors, self._errors

    def stop(self) -> int:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not self._errors, self._errors
        return self.acknowledged


@contextlib.contextmanager
def _counting(fleet: RealFleet) -> Iterator[tuple[KVStore, Load]]:
    with KVStore(fleet.directory, deadline_s=PATIENCE_S) as store:
        store.declare("count", (64,), "float64", updater="add", whole=True)
        load = Load(store)
        try:
            yield store, load
        finally:
            load.stop()


def _ask(fleet: RealFleet, address: str, command: Command) -> str:
    """Ask one process, whatever it is; returns how it says no."""
    fields, arrays = pack_command(command)
    client = BulkClient(address, fleet.description()[1], deadline_s=PATIENCE_S)
    try:
        client.request(Message({"k": "ask", "p": 0, **fields}, arrays), PATIENCE_S)
    except RequestFailed as error:
        return error.kind
    finally:
        client.close()
    return "it did as it was told"


@pytest.mark.ranks
def test_a_killed_and_a_frozen_primary_lose_nothing(tmp_path: Path) -> None:
    # a lease that a busy machine does not break by itself: losing two copies at a time is not what this is about
    with real_fleet(tmp_path, servers=1, replicas=2, lease_s=5.0, patience_s=PATIENCE_S) as fleet:
        with _counting(fleet) as (store, load):
            load.wait_for(20)
            os.kill(fleet.primary(0)[1], signal.SIGKILL)
            load.wait_for(20)
            eventually(fleet.backed_up, "a new backup")
            load.wait_for(20)

            address, pid = fleet.primary(0)
            os.kill(pid, signal.SIGSTOP)
            load.wait_for(20)
            os.kill(pid, signal.SIGCONT)
            # whatever it is asked, it can do nothing
            push = Push(client="stranger", sequence=1, updates=(Update(COUNT.label, np.full(64, 1000.0)),))
            assert _ask(fleet, address, push) == "NotPrimary"
            assert _ask(fleet, address, Pull((Wanted(COUNT.label),))) == "NotPrimary"
            load.wait_for(20)
            counted = load.stop()
            np.testing.assert_array_equal(store.pull("count"), np.full(64, float(counted)))
        said = fleet.end(signal.SIGINT)
        assert fleet.process.returncode == 0, said
        assert said.count("takes over") >= 2, said


@pytest.mark.ranks
def test_a_lost_backup_is_replaced_while_work_goes_on() -> None:
    with (
        LocalFleet(servers=1, replicas=2) as fleet,
        KVStore(fleet.wait_ready(), key=fleet.keys, deadline_s=PATIENCE_S) as store,
    ):
        store.declare("count", (64,), "float64", updater="add")
        store.declare("large", (5_000_000,), "float64", updater="add")  # takes more than one message to send
        store.push("large", np.arange(5e6))
        load = Load(store)
        first = fleet.primary(0)
        backup = next(name for name in fleet.servers if name != first)
        fleet.kill(backup)
        load.wait_for(10)
        eventually(lambda: backup not in fleet.servers and fleet.keeper.ready, "a new backup")
        load.wait_for(10)
        assert fleet.primary(0) == first
        fleet.kill(first)
        load.wait_for(10)
        counted = load.stop()
        np.testing.assert_array_equal(store.pull("count"), np.full(64, float(counted)))
        np.testing.assert_array_equal(store.pull("large"), np.arange(5e6))


@pytest.mark.ranks
def test_primary_and_backup_hold_the_same_bytes() -> None:
    with (
        LocalFleet(servers=1, replicas=2) as fleet,
        KVStore(fleet.wait_ready(), key=fleet.keys, worker=0, workers=1, consistency="bsp") as store,
    ):
        store.declare("w", (40,), "float32", updater="adam", options={"rate": 0.1})
        store.open(1, 4, "asp", ("x",))
        for number in range(5):
            store.push("w", np.linspace(-1, 1, 40))
            store.tick()
            store.stage(f"t{number}", 0, {"w": np.ones(40)}).result(PATIENCE_S)
        store.commit("t0", [0])
        first, second = (fleet.servers[name].replica for name in sorted(fleet.servers, key=fleet.primary(0).__ne__))
        assert first.leader is not None
        assert second.follower is not None
        assert second.follower.state is not None
        assert first.leader.state.digest() == second.follower.state.digest()


def _one_push_then_the_primary_dies(patch: pytest.MonkeyPatch, wait_s: float) -> None:
    """The link to the backup is slow; the primary dies when it has answered, or after a while if it has not."""
    with (
        LocalFleet(servers=1, replicas=2) as fleet,
        contextlib.closing(KVStore(fleet.wait_ready(), key=fleet.keys, deadline_s=PATIENCE_S)) as store,
    ):
        store.declare("count", (64,), "float64", updater="add")
        patch.setattr(Feed, "_send", lambda *rest: None)  # so slow that nothing has left yet
        pushed = store.push_async("count", np.ones(64))
        with contextlib.suppress(TimeoutError):
            pushed.result(wait_s)
        fleet.kill(fleet.primary(0))
        patch.undo()
        pushed.result(PATIENCE_S)
        assert store.pull("count").min() == 1, "an acknowledged push is lost"


@pytest.mark.ranks
def test_no_answer_before_the_backup_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _one_push_then_the_primary_dies(monkeypatch, 0.5)


@pytest.mark.mutation
def test_an_early_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "safe", property(lambda gate: gate.position))
        with pytest.raises(AssertionError, match="an acknowledged push is lost"):
            _one_push_then_the_primary_dies(monkeypatch, PATIENCE_S)


def _the_answer_is_lost_with_the_primary(patch: pytest.MonkeyPatch) -> None:
    """Both copies have the change, and the client has not heard of it: it asks the new primary."""
    with (
        LocalFleet(servers=1, replicas=2) as fleet,
        contextlib.closing(KVStore(fleet.wait_ready(), key=fleet.keys, deadline_s=PATIENCE_S)) as store,
    ):
        store.declare("count", (64,), "float64", updater="add")
        backup = next(server for name, server in fleet.servers.items() if name != fleet.primary(0))
        before = backup.replica.report().position
        patch.setattr(Gate, "release", lambda gate: None)  # nothing is answered
        pushed = store.push_async("count", np.ones(64))
        eventually(lambda: backup.replica.report().position > before, "the change at the backup")
        fleet.kill(fleet.primary(0))
        patch.undo()
        pushed.result(PATIENCE_S)
        assert store.pull("count").max() == 1, "a push was applied twice"


@pytest.mark.ranks
def test_a_repeated_push_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _the_answer_is_lost_with_the_primary(monkeypatch)


@pytest.mark.mutation
def test_a_retry_under_a_new_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Link._send_due

    def renumbering(self: Link) -> None:
        for pending in self._pending._by_ticket.values():
            operation = pending.message.head.get("do")
            if pending.sent_s is None and isinstance(operation, dict) and "sequence" in operation:
                self._sequences["again"] = self._sequences.get("again", 1000) + 1
                operation["sequence"] = self._sequences["again"]
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "_send_due", renumbering)
        with pytest.raises(AssertionError, match="a push was applied twice"):
            _the_answer_is_lost_with_the_primary(monkeypatch)


@pytest.mark.ranks
def test_the_default_lease_lets_a_frozen_primary_be_replaced() -> None:
    with (
        LocalFleet(servers=1, replicas=2, lease_s=1.0) as fleet,
        contextlib.closing(KVStore(fleet.wait_ready(), key=fleet.keys, deadline_s=PATIENCE_S)) as store,
    ):
        store.declare("count", (64,), "float64", updater="add")
        frozen = fleet.primary(0)
        fleet.freeze(frozen)
        store.push("count", np.ones(64))
        assert fleet.primary(0) != frozen
        fleet.wake(frozen)
        eventually(lambda: fleet.keeper.ready, "two copies")
        assert store.pull("count").min() == 1
        assert CALM_S > 1.0
