"""Which samples are meant by ``train``, ``train[:10%]``, ``train[100:200]`` or ``train[50%:]+test``.

Pure functions. Percentages are cut down to whole samples, so that ``[:p%]`` and ``[p%:]`` have every sample once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from shoal.core.errors import ConfigError

ALL = "all"
_PART = re.compile(r"\s*(?P<name>[\w.-]*)\s*(?:\[\s*(?P<start>[^:\]]*?)\s*:\s*(?P<stop>[^:\]]*?)\s*\])?\s*")
_BOUND = re.compile(r"(?P<number>-?\d+)|(?P<percent>-?\d+(?:\.\d+)?)\s*%")
_EXAMPLES = "write e.g. train, train[:10%], train[100:200], train[50%:] or train+test"


@dataclass(frozen=True)
class Bound:
    """So many samples, or so many hundredths of all; from the end where negative."""

    value: Fraction
    percent: bool = False

    def of(self, samples: int) -> int:
        count = self.value * samples / 100 if self.percent else self.value
        # downwards on both sides, so that [-10%:] begins where [:90%] ends
        return int(count // 1) if count >= 0 else samples - int(-count // 1)


@dataclass(frozen=True)
class Slice:
    """A part of a split; `name` is empty or ``all`` for everything there is."""

    name: str
    start: Bound | None = None
    stop: Bound | None = None

    def rows(self, samples: int) -> range:
        """The samples that are meant, of so many. Raises `ConfigError` where it asks for more, or for none."""
        start = self.start.of(samples) if self.start else 0
        stop = self.stop.of(samples) if self.stop else samples
        for bound in (start, stop):
            if not 0 <= bound <= samples:
                raise ConfigError(f"{self} reaches past the {samples:,} samples that there are")
        if start >= stop:
            raise ConfigError(f"{self} is empty: of {samples:,} samples it is those from {start:,} to {stop:,}")
        return range(start, stop)

    def __str__(self) -> str:
        if self.start is None and self.stop is None:
            return self.name or ALL
        return f"{self.name}[{_words(self.start)}:{_words(self.stop)}]"


def parse_split(text: str) -> tuple[Slice, ...]:
    """The parts that `text` names, in order. Raises `ConfigError` that shows how it is written."""
    found = []
    for part in text.split("+"):
        match = _PART.fullmatch(part)
        if match is None or not part.strip():
            raise ConfigError(f"the split {text!r} cannot be understood at {part.strip()!r}: {_EXAMPLES}")
        bounds = [_bound(match[side], text) if match[side] else None for side in ("start", "stop")]
        found.append(Slice(match["name"], *bounds))
    return tuple(found)


def _bound(text: str, whole: str) -> Bound:
    match = _BOUND.fullmatch(text)
    if match is None:
        raise ConfigError(f"the split {whole!r} has {text!r} where a number or a percentage belongs: {_EXAMPLES}")
    if match["number"] is not None:
        return Bound(Fraction(match["number"]))
    percent = Fraction(match["percent"])
    if abs(percent) > 100:
        raise ConfigError(f"the split {whole!r} has {text}, which is more than all")
    return Bound(percent, percent=True)


def _words(bound: Bound | None) -> str:
    if bound is None:
        return ""
    number = str(bound.value) if bound.value.denominator == 1 else str(float(bound.value))
    return f"{number}%" if bound.percent else number
