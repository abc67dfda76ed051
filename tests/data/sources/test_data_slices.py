"""Splits and slices: what is meant by train[:10%]."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.data.slices import Slice, parse_split

pytestmark = pytest.mark.unit

sizes = st.integers(1, 10**7)


def some(text: str, samples: int) -> list[range]:
    """Those of `rows`, or nothing where that is what is meant."""
    try:
        return rows(text, samples)
    except ConfigError as error:
        if "is empty" not in str(error):
            raise
        return []


def rows(text: str, samples: int) -> list[range]:
    return [part.rows(samples) for part in parse_split(text)]


@pytest.mark.parametrize(
    ("text", "samples", "expected"),
    [
        ("train", 10, range(10)),
        ("train[:10%]", 1437, range(143)),
        ("train[100:200]", 500, range(100, 200)),
        ("train[50%:]", 7, range(3, 7)),
        ("train[-10%:]", 100, range(90, 100)),
        ("train[:-3]", 10, range(7)),
        ("[2:4]", 10, range(2, 4)),
        (" train [ 0.5% : 50 % ] ", 1000, range(5, 500)),
        ("train[:]", 3, range(3)),
    ],
)
def test_a_slice_is_what_python_would_take(text: str, samples: int, expected: range) -> None:
    assert rows(text, samples) == [expected]


@given(sizes, st.lists(st.integers(0, 1000), max_size=6))
def test_slices_at_the_same_percentages_have_every_sample_once(samples: int, cuts: list[int]) -> None:
    borders = sorted({0, *cuts, 1000})
    found: list[int] = []
    for start, stop in itertools.pairwise(borders):
        for part in some(f"train[{start / 10}%:{stop / 10}%]", samples):
            found += [part.start, part.stop]
    assert found[0] == 0
    assert found[-1] == samples
    assert found[1:-1:2] == found[2::2]


@given(sizes, st.integers(-(10**7), 10**7), st.integers(-(10**7), 10**7))
def test_numbers_mean_what_they_mean_to_python_or_are_refused(samples: int, start: int, stop: int) -> None:
    try:
        (found,) = rows(f"x[{start}:{stop}]", samples)
    except ConfigError:
        assert abs(start) > samples or abs(stop) > samples or not range(samples)[start:stop]
    else:
        assert found == range(samples)[start:stop]


@given(sizes, st.integers(1, 99))
def test_the_last_percent_are_what_the_first_leave(samples: int, percent: int) -> None:
    parts = some(f"x[:-{percent}%]", samples) + some(f"x[-{percent}%:]", samples)
    assert sum(map(len, parts)) == samples


names = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)
bounds = st.none() | st.integers(-999, 999).map(str) | st.decimals(-100, 100, places=1).map(lambda x: f"{x}%")


@given(st.lists(st.tuples(names, bounds, bounds), min_size=1, max_size=4))
def test_what_is_printed_can_be_read_again(parts: list[tuple[str, str | None, str | None]]) -> None:
    text = "+".join(f"{name}[{start or ''}:{stop or ''}]" for name, start, stop in parts)
    parsed = parse_split(text)
    assert parse_split("+".join(map(str, parsed))) == parsed
    assert [part.name for part in parsed] == [name for name, _, _ in parts]


@given(st.text(max_size=20))
def test_anything_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert all(isinstance(part, Slice) for part in parse_split(text))


@pytest.mark.parametrize(
    "text", ["train[", "train[5]", "train[1:2:3]", "train[a:b]", "train[:200%]", "a b", "train++test"]
)
def test_mistakes_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="the split"):
        parse_split(text)


def test_more_than_there_is_and_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\[:20\] reaches past the 10 samples"):
        rows("train[:20]", 10)
    with pytest.raises(ConfigError, match=r"train\[:5%\] is empty: of 10 samples it is those from 0 to 0"):
        rows("train[:5%]", 10)
