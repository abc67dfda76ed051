"""Who is in the next view, and in which order: a pure function."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def choose(
    staying: Sequence[str], joiners: Sequence[str], most: int | None, is_home: Callable[[str], bool]
) -> tuple[str, ...]:
    """The keys of the next view's members by rank: those that stay in their order, then joiners by arrival, `most` in
    all; of these, those of the home agent come first, because the first worker writes to the run directory. Where all
    are new, they are ordered as they were started: who is quicker to the door must not decide who is first."""
    newcomers = joiners if staying else sorted(joiners, key=_number)
    chosen = [*staying, *newcomers][:most]
    return tuple(sorted(chosen, key=lambda key: not is_home(key)))


def _number(key: str) -> int:
    """The number of a worker within its agent, which is the end of its key."""
    number = key.rpartition("/")[2]
    return int(number) if number.isdecimal() else 0
