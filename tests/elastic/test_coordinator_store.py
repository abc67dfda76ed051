"""The coordinator as the place where a process group meets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from elastic_process import PATIENCE_S, Coordination, coordination
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from shoal.core.errors import PeerLost
from shoal.elastic.store import CoordinatorStore

pytestmark = pytest.mark.ranks


@pytest.fixture
def run() -> Iterator[Coordination]:
    with coordination() as one:
        yield one


def test_it_does_what_a_store_of_torch_does(run: Coordination) -> None:
    with run.link() as link:
        store = CoordinatorStore(link, "view-0/", PATIENCE_S)
        store.set("text", "value")
        store.set("bytes", b"\x00\xff")
        assert (store.get("text"), store.get("bytes")) == (b"value", b"\x00\xff")
        assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
        assert (store.check(["text", "n"]), store.check(["text", "nothing"])) == (True, False)
        assert store.compare_set("new", "", "first") == b"first"
        assert store.compare_set("new", "other", "second") == b"first"
        store.multi_set(["a", "b"], [b"1", b"2"])
        assert store.multi_get(["a", "b"]) == [b"1", b"2"]
        assert store.num_keys() == 6
        assert (store.delete_key("a"), store.delete_key("a")) == (True, False)
        store.wait(["b"], timedelta(seconds=PATIENCE_S))
        store.set_timeout(timedelta(seconds=0.2))
        assert store.timeout == timedelta(seconds=0.2)
        with pytest.raises(RuntimeError, match="for nothing"):
            store.get("nothing")
        store.set_timeout(timedelta(seconds=PATIENCE_S))
        PrefixStore("group", store).set("key", "value")
        assert store.get("group/key") == b"value"


def test_a_wait_in_a_view_that_breaks_ends_at_once(run: Coordination) -> None:
    broken = []
    with run.link() as link, ThreadPoolExecutor(1) as pool:
        store = CoordinatorStore(link, "view-0/", PATIENCE_S, lambda: bool(broken))
        waiting = pool.submit(store.get, "nothing")
        broken.append(True)
        with pytest.raises(PeerLost):
            waiting.result(PATIENCE_S / 2)


def test_gloo_groups_meet_in_it_one_after_the_other(run: Coordination) -> None:
    def member(rank: int, view: int) -> float:
        with run.link() as link:
            store = CoordinatorStore(link, f"group-{view}/", PATIENCE_S)
            options = ProcessGroupGloo._Options()
            options._devices = [ProcessGroupGloo.create_device(interface="lo")]
            options._timeout = timedelta(seconds=PATIENCE_S)
            group = ProcessGroupGloo(store, rank, 2, options)
            tensor = torch.full((3,), float(rank + 1))
            group.allreduce([tensor]).wait()
            return float(tensor.sum())

    with ThreadPoolExecutor(2) as pool:
        for view in (1, 2):
            members = [pool.submit(member, rank, view) for rank in range(2)]
            assert [one.result(PATIENCE_S) for one in members] == [9.0, 9.0]


def test_a_group_whose_view_breaks_in_the_making_is_given_up(run: Coordination) -> None:
    broken = []
    with run.link() as link, ThreadPoolExecutor(1) as pool:
        store = CoordinatorStore(link, "view-0/", PATIENCE_S, lambda: bool(broken))
        making = pool.submit(ProcessGroupGloo, store, 0, 2, timedelta(seconds=PATIENCE_S))
        broken.append(True)
        with pytest.raises(PeerLost):
            making.result(PATIENCE_S / 2)
