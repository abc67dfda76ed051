"""Who has nothing to do in full batches is said beforehand, with the setting that helps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.cursor import Batches, Cursor
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.incremental import Incremental
from shoal.train.cutting import Cutting
from shoal.train.idle import idle_workers

pytestmark = pytest.mark.unit


def idle(global_batch: int, grain: int, weights: tuple[float, ...], *, normed: bool = True) -> str | None:
    cutting = Cutting(grain, False, "norm (BatchNorm1d) looks at its batch", normed=normed)
    return idle_workers(AllReduce(), Batches(1000, global_batch, grain), cutting, weights)


def test_nobody_is_idle_where_there_are_grains_enough() -> None:
    assert idle(64, 16, (1.0,) * 4) is None
    assert idle(64, 64, (1.0,)) is None
    assert idle(64, 16, (1.0, 0.0)) is None, "who was given no share has none on purpose"


def test_the_idle_are_counted_and_the_remedy_is_named() -> None:
    words = idle(53, 18, (1.0,) * 6)
    assert words is not None
    assert words.startswith("3 of 6 workers have no sample in a full batch: it has 3 grains of 18 samples (norm (Batch")
    assert words.endswith("--set grain=8 gives all of them some, of which batch normalisation then sees no more")
    assert "batch normalisation then" not in str(idle(53, 18, (1.0,) * 6, normed=False))
    assert "one of 3" not in str(idle(2, 1, (1.0,) * 3))
    assert "a larger one helps" in str(idle(2, 1, (1.0,) * 3))


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 200))
def test_the_remedy_helps(global_batch: int, workers: int, grain: int) -> None:
    words = idle(global_batch, min(grain, global_batch), (1.0,) * workers)
    if words is not None and "--set grain=" in words:
        better = int(words.partition("--set grain=")[2].split()[0])
        first = Batches(1000, global_batch, better).at(Cursor())
        assert all(first.share(rank, (1.0,) * workers) for rank in range(workers))
        assert idle(global_batch, better, (1.0,) * workers) is None


def test_who_takes_batches_as_it_gets_on_is_not_idle() -> None:
    cutting = Cutting(64, False, "")
    assert idle_workers(Incremental(), Batches(1000, 64, 64), cutting, (1.0,) * 4) is None
