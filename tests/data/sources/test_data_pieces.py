"""The order of samples that lie in pieces: each once an epoch, whoever asks for which part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.files.order import PieceOrder

pytestmark = pytest.mark.unit

pieces = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(pieces, st.integers(1, 200), st.integers(0, 2**63), st.integers(0, 5), st.data())
def test_every_sample_comes_once_an_epoch_however_it_is_asked_for(
    rows: list[int], window_rows: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    samples = sum(rows)
    order = PieceOrder(seed, rows, window_rows)
    whole = order.at(epoch, 0, samples)
    assert sorted(whole.tolist()) == list(range(samples))
    start = data.draw(st.integers(0, samples))
    stop = data.draw(st.integers(start, samples))
    assert PieceOrder(seed, rows, window_rows).at(epoch, start, stop).tolist() == whole[start:stop].tolist()


@given(pieces, st.integers(1, 200), st.integers(0, 100))
def test_few_pieces_are_needed_at_a_time(rows: list[int], window_rows: int, seed: int) -> None:
    order = PieceOrder(seed, rows, window_rows).at(0, 0, sum(rows))
    of = np.repeat(np.arange(len(rows)), rows)[order]
    for piece in range(len(rows)):
        places = np.flatnonzero(of == piece)
        assert places[-1] - places[0] < window_rows + max(rows)  # all its samples are within one window


def test_epochs_and_seeds_differ_and_without_shuffling_nothing_moves() -> None:
    rows = [50] * 20
    orders = {tuple(PieceOrder(seed, rows, 100).at(epoch, 0, 1000).tolist()) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert PieceOrder(0, rows, 100, shuffle=False).at(3, 5, 9).tolist() == [5, 6, 7, 8]


def test_the_order_is_the_same_on_every_machine() -> None:
    assert PieceOrder(1, [3, 2, 4], 4).at(0, 0, 9).tolist() == [8, 3, 7, 5, 4, 6, 2, 1, 0]
