"""What every mode of `KVStore` promises, under every consistency, as tests. A mode's test class inherits them and makes
stores::

    class TestMine(StoreContract):
        @pytest.fixture
        def make(self) -> Iterator[Make]: ...

`make(workers, consistency)` gives the stores of that many workers, each as it would be in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest

from shoal.core.errors import CollectiveTimeout, UserError
from shoal.store.answers import NothingLeft, Wait
from shoal.store.directory import Declaration
from shoal.store.errors import StoreRefused
from shoal.store.keys import DenseKey
from shoal.store.kvstore import KVStore
from shoal.store.operations import Shaping, Task
from shoal.store.values import Rows

Make = Callable[[int, str], list[KVStore]]
T = TypeVar("T")

_SOON_S = 0.3  # for what must not happen
_TABLE = (23, 3)


def together(stores: list[KVStore], function: Callable[[KVStore], T]) -> list[T]:
    """Have every worker do the same at the same time."""
    with ThreadPoolExecutor(len(stores)) as pool:
        return list(pool.map(function, stores))


class StoreContract:
    """`all_write`: whether every worker may change something, or only the first."""

    all_write: ClassVar[bool] = True

    def writers(self, stores: list[KVStore]) -> list[KVStore]:
        return stores if self.all_write else stores[:1]

    @pytest.mark.parametrize("dtype", ["float16", "int64"])
    def test_what_is_set_is_got_by_all(self, make: Make, dtype: str) -> None:
        stores = make(2, "asp")
        values = np.arange(1001).reshape(7, 11, 13).astype(dtype)
        stores[0].set(f"set {dtype}", values)
        for store in stores:
            found = store.get(f"set {dtype}")
            assert found.dtype == values.dtype
            np.testing.assert_array_equal(found, values)

    def test_what_all_push_adds_up(self, make: Make) -> None:
        stores = make(3, "asp")
        stores[0].declare("sum", (1000,), "float64", updater="add")
        writers = self.writers(stores)

        def work(store: KVStore) -> None:
            for _ in range(5):
                store.push("sum", np.arange(1000.0))

        together(writers, work)
        for store in stores:
            np.testing.assert_array_equal(store.pull("sum"), 5 * len(writers) * np.arange(1000.0))

    def test_rows_of_a_table(self, make: Make) -> None:
        stores = make(2, "asp")
        first, last = stores[0], stores[-1]
        first.declare("table", _TABLE, "float64", sparse=True, updater="add")
        expected = np.zeros(_TABLE)
        rows = [22, 0, 11, 0, 22]  # in any order, and repeated: they add up
        values = np.arange(15.0).reshape(5, 3)
        np.add.at(expected, rows, values)
        first.push("table", values, rows=rows)
        np.testing.assert_array_equal(last.pull("table"), expected)
        np.testing.assert_array_equal(last.pull("table", rows=[11, 22, 5, 11]), expected[[11, 22, 5, 11]])
        assert last.pull("table", rows=[]).shape == (0, 3)
        first.set("table", np.full((2, 3), -1.0), rows=[1, 21])
        expected[[1, 21]] = -1
        np.testing.assert_array_equal(last.get("table"), expected)
        outcome = first.push_pull("table", np.ones((2, 3)), rows=[1, 22])
        np.testing.assert_array_equal(outcome, expected[[1, 22]] + 1)

    def test_pushing_and_pulling_in_one_round_trip(self, make: Make) -> None:
        store = make(1, "asp")[0]
        store.declare("both", (100,), "float64", updater="add")
        for count in range(1, 4):
            np.testing.assert_array_equal(store.push_pull("both", np.ones(100)), np.full(100, float(count)))

    def test_into_an_array_of_the_callers(self, make: Make) -> None:
        store = make(1, "asp")[0]
        store.set("out", np.arange(12.0).reshape(3, 4))
        out = np.zeros((3, 4))
        assert store.pull("out", out=out) is out
        np.testing.assert_array_equal(out, np.arange(12.0).reshape(3, 4))

    def test_what_is_pushed_at_once_is_applied_in_order(self, make: Make) -> None:
        store = make(1, "asp")[0]
        store.declare("last", (50,), "int64")
        futures = [store.push_async("last", np.full(50, number)) for number in range(200)]
        pulled = store.pull_async("last")  # behind them all
        assert (pulled.result(60) == 199).all()
        assert all(future.done() for future in futures)

    def test_many_keys_at_once(self, make: Make) -> None:
        store = make(1, "asp")[0]
        given: dict[str, Any] = {f"many {number}": np.full(number + 1, number, "float32") for number in range(20)}
        for key, values in given.items():
            store.set(key, values)
        store.set_many({key: values + 1 for key, values in given.items()}).result(60)
        found = store.pull_many(list(given)).result(60)
        for key, values in given.items():
            np.testing.assert_array_equal(found[key], values + 1)

    def test_very_many_keys_at_once(self, make: Make) -> None:
        store = make(1, "asp")[0]
        names = [f"a key with a rather long name, number {number} of very many" for number in range(1000)]
        store.register([Declaration(DenseKey(name, (3,), "float32"), "add") for name in names])
        store.push_many({name: np.full(3, number) for number, name in enumerate(names)}).result(60)
        found = store.pull_many(names).result(60)
        assert [found[name][0] for name in names] == list(range(1000))
        again = store.push_pull_many({name: np.ones(3) for name in names}).result(60)
        assert [again[name][2] for name in names] == list(range(1, 1001))

    def test_an_updater_with_a_memory(self, make: Make) -> None:
        store = make(1, "asp")[0]
        store.declare("sgd", (64,), "float64", updater="sgd", options={"rate": 0.5, "momentum": 0.5})
        values, velocity = np.zeros(64), np.zeros(64)
        for number in range(3):
            gradient = np.linspace(-1, 1, 64) * (number + 1)
            store.push("sgd", gradient)
            velocity = 0.5 * velocity + gradient
            values -= 0.5 * velocity
        np.testing.assert_allclose(store.pull("sgd"), values, rtol=1e-12)
        kept = store.updater_state("sgd")
        store.set_updater_state("sgd", kept)
        np.testing.assert_array_equal(store.updater_state("sgd").keys() ^ kept.keys(), set())

    # ---- consistency

    def test_bsp_shows_all_pushes_of_the_round(self, make: Make) -> None:
        stores = make(3, "bsp")
        stores[0].declare("rounds", (30,), "float64", updater="add")
        writers = self.writers(stores)

        def work(store: KVStore) -> list[float]:
            seen = []
            for _ in range(4):
                if store in writers:
                    store.push_async("rounds", np.ones(30))
                store.tick()
                seen.append(float(store.pull("rounds").min()))
            return seen

        for seen in together(stores, work):
            for number, value in enumerate(seen):
                assert value >= (number + 1) * len(writers)

    @pytest.mark.parametrize("staleness", [0, 2])
    def test_ssp_lets_nobody_further_ahead(self, make: Make, staleness: int) -> None:
        fast, slow = make(2, f"ssp:{staleness}")
        fast.declare("ahead", (3,), "float64", updater="add")
        for _ in range(staleness):
            fast.tick()
            fast.pull("ahead", deadline_s=60)
        fast.tick()
        with pytest.raises(CollectiveTimeout, match="worker 1"):
            fast.pull("ahead", deadline_s=_SOON_S)
        fast.get("ahead")  # asks for nobody's leave
        waiting = fast.pull_async("ahead", deadline_s=60)
        assert not waiting.done()
        slow.tick()
        waiting.result(60)
        leads = {int(lead): count for lead, count in fast.rounds()["leads"].items()}
        assert max(leads) <= staleness
        assert sum(leads.values()) == staleness + 2

    def test_asp_waits_for_nobody(self, make: Make) -> None:
        fast, _ = make(2, "asp")
        fast.declare("alone", (3,), "float64", updater="add")
        for number in range(10):
            fast.push("alone", np.ones(3))
            fast.tick()
            assert fast.pull("alone", deadline_s=60)[0] == number + 1

    def test_nobody_waits_for_one_that_has_left(self, make: Make) -> None:
        fast, slow = make(2, "bsp")
        fast.declare("left", (3,), "float64")
        fast.tick()
        waiting = fast.pull_async("left", deadline_s=60)
        slow.leave()
        waiting.result(60)

    # ---- transactions and tasks

    def test_a_transaction_takes_effect_as_a_whole(self, make: Make) -> None:
        stores = make(2, "asp")
        first, last = stores[0], stores[-1]
        first.declare("a", (400,), "float64", updater="add")
        first.declare("b", (50, 2), "float64", sparse=True, updater="add")
        first.stage("t", 0, {"a": np.full(400, 2.0)}).result(60)
        self.writers(stores)[-1].stage("t", 1, {"a": np.full(400, 4.0), "b": Rows([7], [[6.0, 6.0]])}).result(60)
        assert first.staged() == {"t": {0, 1}}
        assert not last.pull("a").any()
        assert first.norms("t", [0, 1], Shaping(divisor=2)) == pytest.approx(400 * 9 + 2 * 9)
        done = first.commit("t", [0, 1], shaping=Shaping(divisor=2), record=b"what was done")
        assert (last.pull("a") == 3).all()
        assert last.pull("b", rows=[7]).tolist() == [[3.0, 3.0]]
        again = first.commit("t", [0, 1], shaping=Shaping(divisor=2))
        assert again.before
        assert again.number == done.number
        assert (last.pull("a") == 3).all()
        first.settle()
        assert [(one.transaction, one.record) for one in first.records()] == [("t", b"what was done")]
        assert first.records(after=done.number) == []
        with pytest.raises(StoreRefused, match="missing part"):
            first.commit("u", [0])
        first.stage("u", 0, {"a": np.ones(400)}).result(60)
        first.drop("u")
        assert first.staged() == {}
        assert (last.pull("a") == 3).all()

    def test_tasks_are_dealt_out_and_done_once(self, make: Make) -> None:
        store = make(1, "asp")[0]
        store.declare("tasks", (10,), "float64", updater="add")
        store.open(1, 3, "ssp:1", ("x", "y"))
        done = []
        for _ in range(2):
            task = store.lease("x", 60)
            assert isinstance(task, Task)
            store.stage(f"task {task.number}", 0, {"tasks": np.ones(10)}).result(60)
            store.commit(f"task {task.number}", [0], task=task)
            done.append(task.number)
        held = store.lease("x", _SOON_S)
        assert isinstance(held, Wait)  # y has not begun
        assert held.workers == ("y",)
        last = store.lease("y", 60)
        assert isinstance(last, Task)
        store.release("y")
        again = store.lease("x", 60)
        assert isinstance(again, Task)
        assert again.number == last.number
        store.stage("again", 0, {"tasks": np.ones(10)}).result(60)
        store.commit("again", [0], task=again)
        assert isinstance(store.lease("x", 60), NothingLeft)
        assert (store.pull("tasks") == 3).all()
        assert store.progress().committed == (0, 1, 2)
        store.stage("twice", 0, {"tasks": np.ones(10)}).result(60)
        with pytest.raises(StoreRefused, match="board"):
            store.commit("twice", [0], task=again)
        store.drop("twice")

    # ---- mistakes

    def test_mistakes_are_named(self, make: Make) -> None:
        store = make(1, "asp")[0]
        store.declare("known", (3, 4), "float32")
        store.declare("rows", (5, 2), "float32", sparse=True)
        for mistake, said in (
            (lambda: store.pull("know"), "did you mean 'known'"),
            (lambda: store.push("known", np.ones(5)), r"\(3, 4\).*\(5,\)"),
            (lambda: store.push("known", np.ones(3), rows=[1]), "dense"),
            (lambda: store.pull("rows", rows=[5]), "0 to 4"),
            (lambda: store.push("rows", np.ones((1, 3)), rows=[0]), r"\(1, 2\)"),
            (lambda: store.pull("known", out=np.zeros(3)), "float32"),
            (lambda: store.declare("known", (4, 4), "float32"), "declared as"),
            (lambda: store.declare("text", (4,), "str"), "numbers"),
        ):
            with pytest.raises(UserError, match=said):
                mistake()
        with pytest.raises((UserError, StoreRefused), match="sgdd"):
            store.declare("other", (4,), "float32", updater="sgdd")
        assert store.pull("known").shape == (3, 4)  # nothing of this has done any harm
