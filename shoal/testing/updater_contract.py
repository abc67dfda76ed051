"""What every updater promises, as tests. An updater's test class inherits them and says which updater it is::

class TestMine(UpdaterContract):
    name = "mine"
    options = {"rate": 0.1}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from shoal.store.updaters import Updater, make_updater

Array = npt.NDArray[Any]
State = dict[str, Array]

_TALL = 40_000  # more than one block of an element-wise updater


def _array(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


class UpdaterContract:
    """Give `name` and, if it has any, `options`."""

    name: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", self.dtypes)

    @pytest.fixture
    def updater(self) -> Updater:
        return make_updater(self.name, self.options)

    def test_it_works_in_place_and_leaves_the_gradient_alone(self, updater: Updater, dtype: str) -> None:
        values, gradient, state = _array(1, 50, dtype=dtype), _frozen(_array(2, 50, dtype=dtype)), dict[str, Array]()
        before, where = values.copy(), values.ctypes.data
        for _ in range(3):
            updater.update(values, gradient, state, updater.rate)
        assert values.ctypes.data == where
        assert values.dtype == dtype
        assert not _same(values, before)
        assert _same(gradient, _array(2, 50, dtype=dtype))

    def test_the_same_updates_give_the_same_bytes(self, updater: Updater, dtype: str) -> None:
        ends = []
        for _ in range(2):
            values, state = _array(1, _TALL, dtype=dtype), dict[str, Array]()
            for step in range(3):
                updater.update(values, _array(step, _TALL, dtype=dtype), state, 0.1 / (step + 1))
            ends.append((values, state))
        (one, kept), (other, also_kept) = ends
        assert _same(one, other)
        assert kept.keys() == also_kept.keys()
        assert all(_same(kept[name], also_kept[name]) for name in kept)

    def test_all_that_it_remembers_lies_in_the_state(self, updater: Updater) -> None:
        """So a snapshot is enough to go on, with another instance in another process."""
        values, state = _array(1, 30), dict[str, Array]()
        updater.update(values, _array(2, 30), state, 0.1)
        other_values, other_state = values.copy(), {name: array.copy() for name, array in state.items()}
        other = make_updater(self.name, self.options)
        for seed in (3, 4):
            updater.update(values, _array(seed, 30), state, 0.1)
            other.update(other_values, _array(seed, 30), other_state, 0.1)
        assert _same(values, other_values)

    def test_its_state_is_its_own(self, updater: Updater) -> None:
        values, gradient, state = _array(1, 30), _array(2, 30), dict[str, Array]()
        updater.update(values, gradient, state, 0.1)
        for name, array in state.items():
            assert isinstance(name, str)
            assert isinstance(array, np.ndarray)
            assert not np.shares_memory(array, values)
            assert not np.shares_memory(array, gradient), "the gradient's memory is used for something else next"

    def test_rows_that_are_not_named_are_not_touched(self, updater: Updater, dtype: str) -> None:
        values, state = _array(1, 9, 4, dtype=dtype), dict[str, Array]()
        updater.update(values, _array(2, 9, 4, dtype=dtype), state, 0.1)
        rows, others = np.array([0, 3, 8]), np.array([1, 2, 4, 5, 6, 7])
        before = values.copy()
        kept = {name: array.copy() for name, array in state.items() if array.shape == values.shape}
        updater.update(values, _frozen(_array(3, 3, 4, dtype=dtype)), state, 0.1, rows)
        assert _same(values[others], before[others])
        assert not _same(values[rows], before[rows])
        for name, array in kept.items():
            assert _same(state[name][others], array[others])

    def test_rows_fare_as_if_they_were_all_there_is(self, updater: Updater, dtype: str) -> None:
        rows = np.array([1, 2, 5])
        table, few = _array(1, 7, 3, dtype=dtype), _array(1, 7, 3, dtype=dtype)[rows]
        state, few_state = dict[str, Array](), dict[str, Array]()
        for seed in (2, 3, 4):
            gradient = _array(seed, 3, 3, dtype=dtype)
            updater.update(table, gradient, state, 0.1, rows)
            updater.update(few, gradient, few_state, 0.1, np.arange(3))
        assert _same(table[rows], few)

    def test_no_rows_at_all(self, updater: Updater) -> None:
        values = _array(1, 5, 2)
        updater.update(values, np.empty((0, 2), np.float32), {}, 0.1, np.empty(0, np.int64))
        assert _same(values, _array(1, 5, 2))
        updater.update(np.empty(0, np.float32), np.empty(0, np.float32), {}, 0.1)

    def test_it_does_not_matter_where_an_array_is_cut(self, updater: Updater, dtype: str) -> None:
        if updater.looks_at_whole:
            pytest.skip("its keys are not cut")
        whole, state = _array(1, _TALL, dtype=dtype), dict[str, Array]()
        parts = [whole[:123].copy(), whole[123:].copy()]
        states: list[State] = [{}, {}]
        for seed in (2, 3, 4):
            gradient = _array(seed, _TALL, dtype=dtype)
            updater.update(whole, gradient, state, 0.1)
            updater.update(parts[0], gradient[:123], states[0], 0.1)
            updater.update(parts[1], gradient[123:], states[1], 0.1)
        assert _same(whole, np.concatenate(parts))

    def test_tables_are_also_updated_whole(self, updater: Updater) -> None:
        table, flat = _array(1, 6, 5), _array(1, 30)
        state, flat_state = dict[str, Array](), dict[str, Array]()
        for seed in (2, 3):
            updater.update(table, _array(seed, 6, 5), state, 0.1)
            updater.update(flat, _array(seed, 30), flat_state, 0.1)
        assert _same(table.reshape(-1), flat)
