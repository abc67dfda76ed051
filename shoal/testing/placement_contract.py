"""What every placement promises, as tests. A placement's test class inherits them and says which one it is::

class TestMine(PlacementContract):
    name = "mine"
"""

from __future__ import annotations

import random
from typing import ClassVar

import pytest

from shoal.store.keys import DenseKey, Key, SparseKey
from shoal.store.placement import Placement, place


def some_keys(seed: int, count: int) -> list[Key]:
    """Keys of all kinds and of very different sizes."""
    chance = random.Random(seed)  # noqa: S311 - the same keys each time
    keys: list[Key] = []
    for at in range(count):
        size = int(2 ** chance.uniform(0, 18))
        dtype, whole = chance.choice(["float32", "float64", "int64"]), chance.random() < 0.2
        if chance.random() < 0.3:
            keys.append(SparseKey(f"table{at}", size, (chance.randint(1, 16),), dtype, whole))
        else:
            keys.append(DenseKey(f"array{at}", (size,), dtype, whole))
    return keys


def check_covers(placement: Placement, keys: list[Key], servers: int) -> None:
    """Every unit of every key lies on exactly one server, and what must stay whole is whole."""
    assert len(placement.servers) == servers
    labels = [one.label for slices in placement.servers for one in slices]
    assert len(labels) == len(set(labels))
    assert {one.key.name for slices in placement.servers for one in slices} == {key.name for key in keys}
    for key in keys:
        reached = 0
        for server, one in placement.of(key.name):
            assert one in placement.servers[server]
            assert one.key == key
            assert one.start == reached, f"{one.label} leaves a gap, or lies on two servers"
            reached = one.stop
        assert reached == key.units
        if key.whole:
            assert len(placement.of(key.name)) == 1


class PlacementContract:
    """Give `name`."""

    name: ClassVar[str]

    @pytest.mark.parametrize("servers", [1, 2, 3, 7])
    def test_everything_lies_somewhere_once(self, servers: int) -> None:
        for seed, count in enumerate((0, 1, 2, 40)):
            keys = some_keys(seed, count)
            check_covers(place(keys, servers, name=self.name), keys, servers)

    def test_it_is_a_function_of_its_arguments(self) -> None:
        keys = some_keys(1, 30)
        first = place(keys, 3, name=self.name)
        assert place(list(keys), 3, name=self.name) == first

    def test_keys_that_come_later_move_nothing(self) -> None:
        keys = some_keys(2, 30)
        first = place(keys[:20], 4, name=self.name)
        later = place(keys, 4, first, self.name)
        check_covers(later, keys, 4)
        assert first.moved_bytes(later) == 0
        assert all(set(few) <= set(many) for few, many in zip(first.servers, later.servers, strict=True)), (
            "slices that are held must keep their names"
        )
        assert place(keys, 4, later, self.name) == later

    def test_scalars_and_empty_arrays_have_a_place_too(self) -> None:
        keys: list[Key] = [DenseKey("scalar", ()), DenseKey("empty", (0, 3)), SparseKey("no rows", 0, (4,))]
        check_covers(place(keys, 3, name=self.name), keys, 3)
