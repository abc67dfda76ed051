"""What was asked for, as one value; and the name under which the work for it is kept."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

from shoal.core.errors import ConfigError
from shoal.data.formats import Found
from shoal.data.partition.scheme import Partition
from shoal.data.places import Place
from shoal.data.preparing.rejects import FAIL, REJECT
from shoal.data.preparing.sizes import Sizes
from shoal.data.preparing.step import Chain

TOLERANCE = 0.1  # a shard may have so much more rows than the mean
_WAY = 1  # of dividing the work: raised when the same request is done in other tasks than before


@dataclass(frozen=True)
class Request:
    """`shards` is their number."""

    source: Place
    dest: Place
    chain: Chain
    partition: Partition
    shards: int
    keep_keys: bool = False
    bad_records: str = FAIL
    overwrite: bool = False
    sizes: Sizes = field(default_factory=Sizes)

    def __post_init__(self) -> None:
        if self.bad_records not in (FAIL, REJECT):
            raise ConfigError(f"--bad-records {self.bad_records}: give {FAIL} or {REJECT}")
        if self.shards < 1:
            raise ConfigError(f"--shards {self.shards}: give at least 1")
        if _holds(self.source, self.dest) or _holds(self.dest, self.source):
            raise ConfigError(f"{self.dest} lies in {self.source} or holds it: give another place for the data set")
        if self.keep_keys and not self.partition.is_line:
            raise ConfigError(f"--keep-keys keeps the keys of --partition key or range, not of {self.partition}")

    def fingerprint(self, found: list[Found], schema: bytes) -> str:
        """Differs when anything differs that the data set depends on: files, job or settings."""
        about = {
            "way": _WAY,
            "files": [(entry.place.url, entry.nbytes, entry.mark, kind.name) for entry, kind in found],
            "schema": schema.hex(),
            "dest": self.dest.url,
            "job": self.chain.describe(),
            "partition": str(self.partition),
            "shards": self.shards,
            "keep_keys": self.keep_keys,
            "bad_records": self.bad_records,
            "sizes": asdict(self.sizes),
        }
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _holds(one: Place, other: Place) -> bool:
    """Whether `other` is `one`, or lies below it."""
    return other.url == one.url or other.url.startswith(one.url.rstrip("/") + "/")
