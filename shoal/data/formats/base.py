"""What every format of raw files promises: it can be cut into splits at record borders, and a split can be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.core.errors import UserError
from shoal.core.places import Entry, Place
from shoal.core.registry import Registry


class FormatError(UserError):
    """A file is not what its format says, or files do not fit each other."""


@dataclass(frozen=True)
class Split:
    """A part of a file that can be read alone. `start` and `stop` are bytes, or what else the format counts by."""

    place: Place
    format: str
    start: int
    stop: int
    nbytes: int  # about how much is to be read, for progress

    @property
    def words(self) -> str:
        """Which part of which file."""
        return f"{self.place} from {self.start} on" if self.start else str(self.place)


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be read. `offset` is where it begins: its first byte, or its row where a file has rows."""

    file: str
    offset: int
    reason: str
    text: str = ""  # as much of it as helps


OnBad = Callable[[BadRecord], None]  # raises, or takes note


class Format(ABC):
    """Files with these endings. Stateless: splits are read in any process."""

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    guesses: ClassVar[bool] = False  # whether the schema is a guess by the beginning of a file

    @abstractmethod
    def splits(self, entry: Entry, block_bytes: int) -> list[Split]:
        """Cut a file into splits of about `block_bytes`; every record is in exactly one."""

    @abstractmethod
    def schema(self, entry: Entry) -> Any:
        """The `pyarrow.Schema` of a file, by its own word or by looking at its beginning."""

    @abstractmethod
    def read(self, split: Split, schema: Any, on_bad: OnBad) -> Iterator[Any]:
        """The records of a split as `pyarrow.RecordBatch`es of `schema`, which may leave columns out. One that cannot
        be read, or does not fit, is told to `on_bad`, and left out if that returns."""

    def counted(self, entry: Entry, block_bytes: int) -> list[tuple[Split, int]] | None:
        """The splits of a file, each with the number of its records, where that is known without reading them."""
        return None

    def common_schema(self, entries: Sequence[Entry]) -> Any:
        """The schema that all these files have. Raises `FormatError` that names two that differ, and in what."""
        from shoal.data.formats.schemas import agree

        return agree(self, entries)


formats: Registry[type[Format]] = Registry("format")


def format_named(name: str) -> Format:
    """The format of this name; raises `ConfigError` naming the nearest."""
    import shoal.data.formats  # noqa: F401 - registers all of them

    return formats.get(name)()
