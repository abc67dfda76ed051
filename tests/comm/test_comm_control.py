"""The control page, where several processes write to it at the same moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.comm.control import ControlPage

pytestmark = pytest.mark.unit


class HeldUp:
    """The words of a page, as a process has them that does nothing for a while after each of its looks."""

    def __init__(self, words: Any, meanwhile: Callable[[], None]) -> None:
        self._words, self._meanwhile = words, meanwhile

    def __getitem__(self, at: int) -> Any:
        seen = self._words[at]
        self._meanwhile()
        return seen

    def __setitem__(self, at: int, value: int) -> None:
        self._words[at] = value


@pytest.fixture
def pages() -> Iterator[tuple[ControlPage, ControlPage]]:
    one = ControlPage()
    yield one, ControlPage(one.fd)
    one.close()


@pytest.mark.parametrize("late", [1, 3, 4, 5, 6])
def test_late_news_of_an_older_view_does_not_mend_a_newer_one(
    pages: tuple[ControlPage, ControlPage], late: int
) -> None:
    quick, slow = pages
    quick.break_view(2)
    slow._words = HeldUp(slow._words, lambda: quick.break_view(5))  # type: ignore[assignment]
    slow.break_view(late)
    assert quick.broken(5)
    assert quick.broken(late)
    assert not quick.broken(max(5, late) + 1)


def test_views_up_to_the_broken_one_are_broken(pages: tuple[ControlPage, ControlPage]) -> None:
    one, other = pages
    one.break_view(7)
    assert all(other.broken(number) for number in range(8))
    assert not any(other.broken(number) for number in range(8, 30))
    other.break_view(3)
    assert one.broken(7)
    other.abort()
    assert one.broken(30)
