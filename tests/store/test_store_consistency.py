"""Consistency as a value: how it is written, read and refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Self

import pytest

from shoal.core.consistency import ASP, BSP, SSP, Consistency, consistencies, parse
from shoal.core.errors import ConfigError
from shoal.testing.consistency_contract import ConsistencyContract

pytestmark = pytest.mark.unit


class TestBSP(ConsistencyContract):
    values = (BSP(),)


class TestSSP(ConsistencyContract):
    values = (SSP(0), SSP(1), SSP(staleness=4))


class TestASP(ConsistencyContract):
    values = (ASP(),)


@dataclass(frozen=True)
class Doubling(Consistency):
    """A user's own: a bound of 2 to the power of what is written."""

    power: int

    @property
    def bound(self) -> int:
        return 1 << self.power

    def __str__(self) -> str:
        return f"doubling:{self.power}"

    @classmethod
    def from_argument(cls, argument: str | None) -> Self:
        if argument is None or not argument.isdigit():
            raise ValueError("doubling needs a power: write doubling:2")
        return cls(int(argument))


if "doubling" not in consistencies:
    consistencies.add("doubling")(Doubling)


class TestOnesOwn(ConsistencyContract):
    values = (Doubling(0), Doubling(3))

    def test_it_is_chosen_by_its_name(self) -> None:
        assert parse("doubling:4").bound == 16
        with pytest.raises(ConfigError, match=r"'doubling'.*write doubling:2"):
            parse("doubling")


@pytest.mark.parametrize(
    ("text", "value", "bound"),
    [("bsp", BSP(), 0), ("ssp:4", SSP(4), 4), ("ssp:0", SSP(0), 0), ("asp", ASP(), None), (" SSP: 12 ", SSP(12), 12)],
)
def test_what_is_written_is_what_is_meant(text: str, value: Consistency, bound: int | None) -> None:
    assert parse(text) == value
    assert parse(text).bound == bound


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ssp", "'ssp'.*write ssp:4"),
        ("ssp:", "'ssp:'.*write ssp:4"),
        ("ssp:-1", "'ssp:-1'.*whole number.*write ssp:4"),
        ("ssp:four", "write ssp:4"),
        ("ssp:²", "write ssp:4"),
        ("bsp:2", "'bsp:2'.*bsp takes no number"),
        ("asp:0", "'asp:0'.*asp takes no number"),
        ("sspp:3", "unknown consistency 'sspp'.*'ssp'"),
        ("", "unknown consistency ''"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)


@pytest.mark.parametrize("staleness", [-1, 1.5, True, "4"])
def test_staleness_is_a_number_of_tasks(staleness: object) -> None:
    with pytest.raises(ConfigError, match="0 or more"):
        SSP(staleness)  # type: ignore[arg-type]


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        SSP(3).staleness = 4  # type: ignore[misc]
