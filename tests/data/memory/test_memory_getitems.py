"""Datasets that give many samples at once: asked so as long as nothing is drawn, and exact in any event."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset

from shoal.core.errors import UserError
from shoal.core.order import Indices
from shoal.data import open_source

pytestmark = pytest.mark.unit


def at(*numbers: int) -> Indices:
    return np.array(numbers, dtype=np.int64)


DRAWS: dict[str, Any] = {
    "torch": lambda: float(torch.rand(())),
    "torch's normal": lambda: float(torch.randn(())),
    "python": random.random,
    "numpy": lambda: float(np.random.random()),
    "numpy's normal": lambda: float(np.random.normal()),
}


class Many(Dataset[Any]):
    """Draws for the samples in `noisy`; remembers how it was asked."""

    def __init__(self, noisy: tuple[int, ...] = (), draw: str = "torch") -> None:
        self.noisy, self.draw = noisy, DRAWS[draw]
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 20

    def make(self, index: int) -> Any:
        return index, float(self.draw()) if index in self.noisy else 0.0

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.make(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(list(indices))
        return [self.make(index) for index in indices]


def test_samples_are_asked_for_together_where_nothing_is_drawn() -> None:
    dataset = Many()
    source = open_source(dataset, "train")
    for _ in range(2):
        numbers, _drawn = source.fetch(at(3, 1, 2), 0, 0)
        assert numbers.tolist() == [3, 1, 2]
    assert dataset.asked == [[3, 1, 2], [3, 1, 2]]


@pytest.mark.parametrize("draw", DRAWS)
def test_samples_that_draw_are_read_again_one_by_one(draw: str) -> None:
    dataset = Many(noisy=(2,), draw=draw)
    source = open_source(dataset, "train")
    source.fetch(at(0, 1), 0, 0)
    _, drawn = source.fetch(at(1, 2), 0, 0)
    assert dataset.asked == [[0, 1], [1, 2], 1, 2]
    assert drawn[1] == open_source(Many((2,), draw), "test").fetch(at(2), 0, 0)[1][0]
    source.fetch(at(0, 1), 0, 0)
    assert dataset.asked[4:] == [0, 1], "it was asked for many again"


@given(st.sets(st.integers(0, 19)), st.permutations(range(20)), st.integers(1, 7), st.sampled_from(sorted(DRAWS)))
def test_a_sample_has_the_same_bits_however_samples_are_grouped(
    noisy: set[int], order: list[int], size: int, draw: str
) -> None:
    whole = open_source(Many(tuple(noisy), draw), "train").fetch(at(*range(20)), 4, 2)[1]
    source = open_source(Many(tuple(noisy), draw), "train")
    for start in range(0, 20, size):
        part = order[start : start + size]
        assert torch.equal(source.fetch(at(*part), 4, 2)[1], whole[part])


def test_a_batch_that_is_collated_already_is_not_taken_for_samples() -> None:
    class Collated(Many):
        def __getitems__(self, indices: list[int]) -> Any:
            return torch.tensor(indices), torch.zeros(len(indices))

    for rows in (at(3, 4), at(3, 4, 5)):
        assert open_source(Collated(), "train").fetch(rows, 0, 0)[0].tolist() == rows.tolist()


def test_a_subset_of_a_dataset_that_draws_is_exact() -> None:
    class Noisy(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return torch.rand(2)

    source = open_source(Subset(Noisy(), [5, 6, 7]), "train")
    assert torch.equal(source.fetch(at(0, 1), 0, 0)[1:], source.fetch(at(1, 2), 0, 0)[:1])


def test_the_generators_are_left_as_they_were() -> None:
    def state() -> Any:
        numpy: Any = np.random.get_state(legacy=True)
        return torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2]

    before = state()
    open_source(Many(noisy=(1,)), "train").fetch(at(0, 1), 0, 0)
    assert state() == before


def test_what_goes_wrong_is_told_with_the_samples() -> None:
    class Broken(Many):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            if 3 in indices:
                raise KeyError("no such file")
            return [0]

    with pytest.raises(KeyError) as caught:
        open_source(Broken(), "train").fetch(at(2, 3), 0, 0)
    assert caught.value.__notes__ == ["while reading 2 samples of the train data, the first 2"]
    with pytest.raises(UserError, match="asked for 2 samples and gave 1"):
        open_source(Broken(), "train").fetch(at(0, 1), 0, 0)
