"""Where slices lie: even, whole where they must be, and hardly moved by a further server."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.store.keys import DenseKey, Key, Slice, SparseKey
from shoal.store.placement import Placement, place, placements
from shoal.testing.placement_contract import PlacementContract, check_covers

pytestmark = pytest.mark.unit

_SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, database=None)


class TestEven(PlacementContract):
    name = "even"


def whole_on_the_first(keys: list[Key], servers: int, standing: Placement | None) -> Placement:
    """A user's own, as short as it can be."""
    return Placement((tuple(Slice(key, 0, key.units) for key in keys), *[()] * (servers - 1)))


if "all on the first" not in placements:
    placements.add("all on the first")(whole_on_the_first)  # type: ignore[arg-type]


class TestOnesOwn(PlacementContract):
    name = "all on the first"


@st.composite
def some(draw: st.DrawFn) -> list[Key]:
    """Keys from single numbers to some megabytes."""
    sizes = draw(st.lists(st.integers(0, 22), min_size=1, max_size=25))
    keys: list[Key] = []
    for at, size in enumerate(sizes):
        units = 2**size + draw(st.integers(0, 2**size))
        if draw(st.booleans()):
            keys.append(SparseKey(f"table {at}", max(1, units // 8), (8,)))
        else:
            keys.append(DenseKey(f"array {at}", (units,), draw(st.sampled_from(["float32", "float64"]))))
    return keys


def spread(placement: Placement) -> int:
    return max(placement.loads()) - min(placement.loads())


def total(keys: list[Key]) -> int:
    return sum(key.units * key.unit_bytes for key in keys)


@given(keys=some(), servers=st.integers(1, 12))
@_SETTINGS
def test_servers_differ_by_at_most_a_tenth(keys: list[Key], servers: int) -> None:
    placement = place(keys, servers)
    check_covers(placement, keys, servers)
    # what cannot be cut, a row or a number, may lie on one side or on the other
    assert spread(placement) <= max(0.1 * total(keys) / servers, 2 * max(key.unit_bytes for key in keys))


@given(keys=some(), servers=st.integers(1, 12))
@_SETTINGS
def test_a_further_server_moves_its_own_share_and_nothing_else(keys: list[Key], servers: int) -> None:
    before, after = place(keys, servers), place(keys, servers + 1)
    moved = before.moved_bytes(after)
    assert moved == after.loads()[-1], "what moved went to the new server"
    assert moved <= 1.1 * total(keys) / (servers + 1) + 2 * max(key.unit_bytes for key in keys)
    assert place(keys, servers + 1, before) == after


@given(keys=some(), servers=st.integers(1, 6), at=st.integers(0, 25))
@_SETTINGS
def test_keys_that_come_later_keep_it_even(keys: list[Key], servers: int, at: int) -> None:
    first, rest = keys[:at], keys[at:]
    placement = place(keys, servers, place(first, servers))
    check_covers(placement, keys, servers)
    if total(rest) >= total(first):  # there was enough to even out what stood
        assert spread(placement) <= max(0.1 * total(keys) / servers, 2 * max(key.unit_bytes for key in keys))


@pytest.mark.parametrize("servers", range(1, 7))
def test_many_keys_that_must_stay_whole_are_even_too(servers: int) -> None:
    chance = random.Random(servers)
    keys: list[Key] = [DenseKey(f"k{at}", (chance.randint(1, 400),), whole=True) for at in range(500)]
    placement = place(keys, servers)
    check_covers(placement, keys, servers)
    assert spread(placement) <= 0.1 * total(keys) / servers


@given(servers=st.integers(2, 8), small=some())
@settings(parent=_SETTINGS, max_examples=20)
def test_one_that_is_huge_and_must_stay_whole_has_a_server_and_the_rest_is_even(servers: int, small: list[Key]) -> None:
    huge = DenseKey("huge", (2 * total(small) + 1,), whole=True)
    placement = place([huge, *small], servers)
    check_covers(placement, [huge, *small], servers)
    ((home, _),) = placement.of("huge")
    others = [load for server, load in enumerate(placement.loads()) if server != home]
    assert placement.loads()[home] - huge.units * 4 <= max(others)


def test_one_huge_array_is_cut_into_few_pieces() -> None:
    key = DenseKey("huge", (26_214_400,))  # 100 MiB
    pieces = [sum(map(len, place([key], servers).servers)) for servers in (1, 2, 3, 4, 8)]
    assert pieces[:3] == [1, 2, 3]
    assert pieces[3] <= 6
    assert pieces[4] <= 30


def test_small_arrays_stay_whole_beside_a_large_one() -> None:
    keys: list[Key] = [DenseKey("large", (4_000_000,)), *(DenseKey(f"bias {at}", (4096,)) for at in range(50))]
    placement = place(keys, 4)
    assert all(len(placement.of(key.name)) == 1 for key in keys[1:])
    assert spread(placement) <= 0.1 * total(keys) / 4


def test_cuts_of_large_arrays_are_aligned() -> None:
    placement = place([DenseKey("large", (4_000_001,))], 5)
    assert all(one.start * 4 % 64 == 0 for slices in placement.servers for one in slices)


def test_fractions_that_move_from_one_server_to_sixteen() -> None:
    """Stated in the docs: what a further server moves is what it shall hold."""
    keys: list[Key] = [DenseKey("w1", (1024, 4096)), DenseKey("b1", (4096,)), SparseKey("e", 50_000, (64,))]
    steps = [place(keys, servers) for servers in range(1, 17)]
    for servers, (before, after) in enumerate(pairwise(steps), start=1):
        fraction = before.moved_bytes(after) / total(keys)
        assert fraction == pytest.approx(1 / (servers + 1), rel=0.03)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="0 servers"):
        place([], 0)
    with pytest.raises(ConfigError, match=r"unknown placement 'evenn'.*'even'"):
        place([], 1, name="evenn")
    with pytest.raises(ConfigError, match="no name"):
        DenseKey("", (1,))
    with pytest.raises(ConfigError, match=r"'w'.*bfloat16"):
        DenseKey("w", (1,), "bfloat16")
    with pytest.raises(ConfigError, match=r"'w'.*-1"):
        SparseKey("w", -1, (3,))


@pytest.mark.parametrize("servers", [2, 3, 5])
def test_a_key_of_a_few_elements_is_never_cut(servers: int) -> None:
    """Also where it is all that there is: whoever reads it would see one half before a push and the other after."""
    few, many = DenseKey("few", (7,), "float64"), DenseKey("many", (5000,), "float32")
    for keys in ([few], [few, many], [DenseKey(f"few {number}", (7,), "int64") for number in range(20)]):
        standing = place(keys[:1], servers)
        for placement in (place(keys, servers), place(keys, servers, standing), place(keys, servers, place(keys, 1))):
            for key in keys:
                assert len(placement.of(key.name)) == 1 or key is many
    assert len(place([few, many], servers).of("many")) >= servers, "large ones are"
