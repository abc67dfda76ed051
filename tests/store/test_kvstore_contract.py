"""Every mode of the store holds the contract."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
from kvstore_fleets import PATIENCE_S, LocalFleet, free_address

from shoal.comm.keys import RunKeys
from shoal.core.errors import UserError
from shoal.store.keys import Key, Slice
from shoal.store.kvstore import KVStore
from shoal.store.placement import Placement, placements
from shoal.testing.store_contract import Make, StoreContract

pytestmark = pytest.mark.contract


class ServerContract(StoreContract):
    replicas: ClassVar[int] = 1

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with LocalFleet(2, self.replicas) as fleet, contextlib.ExitStack() as stack:

            def make(workers: int, consistency: str) -> list[KVStore]:
                described = fleet.wait_ready()
                return [
                    stack.enter_context(
                        contextlib.closing(
                            KVStore(
                                described,
                                key=fleet.keys,
                                worker=worker,
                                workers=workers,
                                consistency=consistency,
                                deadline_s=PATIENCE_S,
                            )
                        )
                    )
                    for worker in range(workers)
                ]

            yield make


class TestServers(ServerContract):
    def test_there_is_no_workers_copy(self, make: Make) -> None:
        store = make(1, "asp")[0]
        store.set("x", np.ones(3))
        with pytest.raises(UserError, match="mode 'worker'"):
            store.pull("x", worker=0)


class TestServersWithBackups(ServerContract):
    replicas = 2


class PeerContract(StoreContract):
    mode: ClassVar[str]

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        keys = RunKeys.make()
        with contextlib.ExitStack() as stack:

            def make(workers: int, consistency: str) -> list[KVStore]:
                address = free_address()
                with ThreadPoolExecutor(workers) as pool:
                    stores = list(
                        pool.map(
                            lambda worker: KVStore(
                                address,
                                key=keys,
                                mode=self.mode,
                                worker=worker,
                                workers=workers,
                                consistency=consistency,
                                deadline_s=PATIENCE_S,
                            ),
                            range(workers),
                        )
                    )
                for store in stores:
                    stack.callback(store.close)
                return stores

            yield make

    def test_every_copy_has_what_was_acknowledged(self, make: Make) -> None:
        stores = make(3, "asp")
        stores[0].declare("copies", (100,), "float64", updater="add")
        for _ in range(3):
            for store in self.writers(stores):
                store.push("copies", np.ones(100))
        expected = 3.0 * len(self.writers(stores))
        for store in stores:
            for worker in range(3):
                assert (store.pull("copies", worker=worker) == expected).all()
        with pytest.raises(UserError, match="no worker 3"):
            stores[0].pull("copies", worker=3)


class TestWorkers(PeerContract):
    mode = "worker"


class TestBroadcast(PeerContract):
    mode = "broadcast"
    all_write = False

    def test_only_one_writes(self, make: Make) -> None:
        writer, reader = make(2, "asp")
        writer.set("x", np.ones(3))
        with pytest.raises(UserError, match="only worker 0"):
            reader.set("x", np.zeros(3))
        with pytest.raises(UserError, match="only worker 0"):
            reader.push("x", np.zeros(3))
        assert (reader.pull("x") == 1).all()


def on_the_last(keys: Sequence[Key], servers: int, standing: Placement | None) -> Placement:
    """A user's own."""
    return Placement((*[()] * (servers - 1), tuple(Slice(key, 0, key.units) for key in keys)))


if "on the last" not in placements:
    placements.add("on the last")(on_the_last)


def test_the_first_server_says_how_old_copies_are_though_a_placement_leaves_it_empty() -> None:
    with (
        LocalFleet(2) as fleet,
        contextlib.closing(KVStore(fleet.wait_ready(), key=fleet.keys, placement="on the last")) as store,
    ):
        store.declare("x", (3,), "float64", updater="add")
        copy, seen = np.zeros(3), dict[str, int]()
        for number in range(3):
            store.stage(f"{number}", 0, {"x": np.ones(3)}).result(PATIENCE_S)
            read = store.refresh({"x": copy}, seen).result(PATIENCE_S)[0]
            assert copy.tolist() == [number] * 3
            assert store.commit(f"{number}", [0], read_version=read).staleness == 0
