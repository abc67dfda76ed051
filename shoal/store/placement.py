"""Which server holds which slices: a pure function of the keys and the number of servers.

All keys begin on one server; each further server is given its share by those that have too much, and nothing else
moves. So whoever adds a server to n moves what that one shall hold, 1 / (n + 1) of the bytes, and no even placement can
move less. Large arrays are cut where that is needed; small ones stay whole, and a key of less than 1 KiB is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from shoal.core.errors import ConfigError
from shoal.core.registry import Registry
from shoal.store.keys import Key, Slice

_SMALL_BYTES = 1 << 16  # nothing below this is cut,
_SMALL_PART = 1 / 50  # unless it is more than this part of what a server shall hold
_WHOLE_BYTES = 1 << 10  # a key below this is never cut, however little there is: who reads it reads all of one moment
_ALIGN_BYTES = 64


@dataclass(frozen=True)
class Placement:
    """By server, the slices it holds. Every unit of every key lies on exactly one server."""

    servers: tuple[tuple[Slice, ...], ...]

    @cached_property
    def _of(self) -> dict[str, tuple[tuple[int, Slice], ...]]:
        found: dict[str, list[tuple[int, Slice]]] = {}
        for server, slices in enumerate(self.servers):
            for one in slices:
                found.setdefault(one.key.name, []).append((server, one))
        return {name: tuple(sorted(pairs, key=lambda pair: pair[1].start)) for name, pairs in found.items()}

    def __contains__(self, key: str) -> bool:
        return key in self._of

    def of(self, key: str) -> tuple[tuple[int, Slice], ...]:
        """(server, slice) of a key, in order of the slices' starts; raises `KeyError`."""
        return self._of[key]

    def loads(self) -> tuple[int, ...]:
        """Bytes by server."""
        return tuple(sum(one.nbytes for one in slices) for slices in self.servers)

    def moved_bytes(self, other: Placement) -> int:
        """How many bytes lie on another server in `other`, which holds the same keys."""
        moved = 0
        for name, pairs in self._of.items():
            for server, one in pairs:
                for elsewhere, two in other.of(name):
                    common = min(one.stop, two.stop) - max(one.start, two.start)
                    moved += max(0, common) * one.key.unit_bytes if server != elsewhere else 0
        return moved


# (all keys, number of servers, where those of them lie that are placed already) -> where all of them lie
Placer = Callable[[Sequence[Key], int, Placement | None], Placement]

placements: Registry[Placer] = Registry("placement")


def place(keys: Sequence[Key], servers: int, standing: Placement | None = None, name: str = "even") -> Placement:
    """Place `keys` on `servers` servers by the placement registered as `name`. Keys that are in `standing` stay there;
    if it has fewer servers, the new ones are given their shares."""
    if servers < 1:
        raise ConfigError(f"keys cannot be placed on {servers} servers: give 1 or more")
    placer = placements.get(name)
    return placer(keys, servers, standing)


@placements.add("even")
def place_evenly(keys: Sequence[Key], servers: int, standing: Placement | None = None) -> Placement:
    """Every server holds the same number of bytes, within 10 % wherever keys that must stay whole, or are too small to
    be cut, and rows, are not larger than a few hundredths of it."""
    if standing is None or len(standing.servers) > servers:
        placement = _pour(keys, Placement(((),)))
        return _grown(placement, servers)
    return _pour([key for key in keys if key.name not in standing], _grown(standing, servers))


def _grown(placement: Placement, servers: int) -> Placement:
    while len(placement.servers) < servers:
        placement = _with_one_more(placement)
    return placement


def _small(target: float) -> float:
    """What is not worth a cut on servers that shall hold `target` bytes each."""
    return min(_SMALL_BYTES, target * _SMALL_PART)


def _pour(keys: Sequence[Key], standing: Placement) -> Placement:
    """Add keys where there is most room; what stands stays."""
    servers = [list(slices) for slices in standing.servers]
    loads = list(standing.loads())
    target = (sum(loads) + sum(key.units * key.unit_bytes for key in keys)) / len(servers)
    for key in sorted(keys, key=lambda key: (-key.units * key.unit_bytes, key.name)):
        rest = Slice(key, 0, key.units)
        while True:
            server = loads.index(min(loads))
            head = _cut(rest, target - loads[server], _small(target), from_end=False)
            if head is None:
                break
            servers[server].append(head)
            loads[server] += head.nbytes
            rest = Slice(key, head.stop, rest.stop)
        servers[server].append(rest)
        loads[server] += rest.nbytes
    return Placement(tuple(_tidy(slices) for slices in servers))


def _with_one_more(standing: Placement) -> Placement:
    """Give one more server its share, each of the others what it has too much."""
    servers = [list(slices) for slices in standing.servers]
    loads = list(standing.loads())
    target = sum(loads) / (len(servers) + 1)
    taken: list[Slice] = []
    load = 0
    owed = 0.0  # what those before could not give: too small to be cut, or whole
    for donor in sorted(range(len(servers)), key=lambda donor: (-loads[donor], donor)):
        amount = min(loads[donor] - target + owed, target - load)
        given = _take(servers[donor], taken, amount, _small(target))
        loads[donor] -= given
        load += given
        owed = max(0.0, amount - given)
    stuck: set[int] = set()  # these hold nothing more that could be given
    while len(stuck) < len(servers):  # keys that must stay whole are in the way of equal loads: even out the rest
        donor = max((one for one in range(len(servers)) if one not in stuck), key=lambda one: (loads[one], -one))
        amount = (loads[donor] - load) / 2
        if amount <= _small(target):
            break
        given = _take(servers[donor], taken, amount, _small(target))
        loads[donor] -= given
        load += given
        if not given:
            stuck.add(donor)
    return Placement(tuple(_tidy(slices) for slices in (*servers, taken)))


def _take(giver: list[Slice], taken: list[Slice], amount: float, small: float) -> int:
    """Move about `amount` bytes from `giver` to `taken`, largest slices first, and cut what is too large. Returns the
    bytes moved."""
    left = amount
    beside = {(one.key.name, one.stop) for one in taken}  # what begins here can be joined to what the taker has
    kept: list[Slice] = []
    for one in sorted(giver, key=lambda one: (-one.nbytes, one.key.name, one.start)):
        part = None
        if 0 < one.nbytes <= left:
            part = one
        elif left > 0:
            part = _cut(one, left, small, from_end=(one.key.name, one.start) not in beside)
        if part is None:
            kept.append(one)
            continue
        taken.append(part)
        left -= part.nbytes
        for start, stop in ((one.start, part.start), (part.stop, one.stop)):
            if start < stop:
                kept.append(Slice(one.key, start, stop))
    giver[:] = kept
    return round(amount - left)


def _cut(one: Slice, nbytes: float, small: float, from_end: bool) -> Slice | None:
    """About `nbytes` of a slice, from its end or its beginning; None where it is too small to be cut, or must not."""
    if one.key.whole or one.key.units * one.key.unit_bytes < _WHOLE_BYTES or one.nbytes <= small or nbytes < small:
        return None
    unit = one.key.unit_bytes
    align = max(1, _ALIGN_BYTES // unit) if small >= _ALIGN_BYTES else 1
    border = one.stop - int(nbytes / unit) if from_end else one.start + int(nbytes / unit)
    border -= border % align
    if not one.start < border < one.stop:
        return None
    return Slice(one.key, border, one.stop) if from_end else Slice(one.key, one.start, border)


def _tidy(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """In order of names and starts; neighbours are joined."""
    tidy: list[Slice] = []
    for one in sorted(slices, key=lambda one: (one.key.name, one.start)):
        if tidy and tidy[-1].stop == one.start and tidy[-1].key == one.key:
            one = Slice(one.key, tidy.pop().start, one.stop)  # noqa: PLW2901
        tidy.append(one)
    return tuple(tidy)
