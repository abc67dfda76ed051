"""What `--partition` says: by what rows are divided."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import ConfigError, nearest

KINDS = {
    "file": "the order of the source, in blocks of equal bytes",
    "round-robin": "one row to each shard in turn",
    "key": "by the hash of a key, heavy keys spread: key:COLUMN, or the job's key()",
    "range": "sorted by a column, in ranges of equal rows: range:COLUMN",
    "rank": "by a score, so that every shard has its part of the hot ones: rank:COLUMN",
}
_BY_COLUMN = ("key", "range", "rank")


@dataclass(frozen=True)
class Partition:
    """`column` is what `key`, `range` and `rank` look at; None: the key of the job."""

    kind: str
    column: str | None = None

    @classmethod
    def parse(cls, words: str) -> Partition:
        """``key:user``, ``file`` and so on. Raises `ConfigError`."""
        kind, _, column = words.partition(":")
        if kind not in KINDS:
            raise ConfigError(f"--partition {words}: unknown way to divide rows {kind!r}: {nearest(kind, KINDS)}")
        if column and kind not in _BY_COLUMN:
            raise ConfigError(f"--partition {words}: {kind} looks at no column: give --partition {kind}")
        return cls(kind, column or None)

    def __str__(self) -> str:
        return f"{self.kind}:{self.column}" if self.column else self.kind

    @property
    def is_line(self) -> bool:
        """Whether shards are pieces of one sorted line."""
        return self.kind in ("key", "range")

    @property
    def is_sorted(self) -> bool:
        """Whether rows are sorted by something before they are divided."""
        return self.kind in _BY_COLUMN
