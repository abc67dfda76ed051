"""Streams: data that can only be read from its beginning to its end, such as an `IterableDataset`.

A stream is read through once, when it is opened, into a spool; from then on it is a data set like any other, whose
samples are shuffled, dealt out, read again after a crash and counted by their numbers. Every worker reads the whole
stream: workers compare what they have read, and a stream that is not the same for all is refused.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from shoal.core.errors import ConfigError, UserError
from shoal.core.order import Indices
from shoal.core.seeds import mix
from shoal.data.generators import lent_generators, seed_all
from shoal.data.libraries import formatted
from shoal.data.sample_bytes import SampleError
from shoal.data.samples import SampleSource
from shoal.data.source import Source
from shoal.data.spool import Spool, SpoolError

LIMIT_SAMPLES = 20_000_000
PROGRESS_S = 5.0
_STREAM = 9  # what seeds the generators while a stream is read: the same everywhere


class StreamError(UserError):
    """A stream does not end."""


def stream(data: Iterable[Any], samples: int | None = None) -> Source:
    """Read a stream that is no torch or Hugging Face `IterableDataset` but can be iterated over more than once, or only
    the first `samples` of a stream that is long or has no end."""
    if samples is not None and samples < 1:
        raise ConfigError(f"stream(samples={samples}): give at least 1")
    if isinstance(data, Iterator) or not isinstance(data, Iterable):
        raise ConfigError(
            f"stream({type(data).__name__}): what is given must begin anew each time it is iterated over, for every "
            "worker reads it. Give an object whose __iter__ makes a new iterator"
        )
    return StreamSource(formatted(data), "streamed", samples)


class StreamSource(SampleSource):
    """The samples of `dataset`, read when this object is made. What the stream draws from the three global generators
    is the same on every worker, and in every epoch: what should differ belongs in a `transform`.

    Raises what the stream raises, with a note that names the sample, and `StreamError` where there is no end to it.
    """

    def __init__(self, dataset: Iterable[Any], name: str, samples: int | None = None) -> None:
        super().__init__(dataset, name)
        self._dataset, self._limit = dataset, samples
        self._spool = self._read()

    def __len__(self) -> int:
        return len(self._spool)

    @property
    def digest(self) -> str | None:
        return self._spool.digest

    def samples(self, indices: Indices, epoch: int, seed: int) -> list[Any]:
        return [self._spool.read(number) for number in indices.tolist()]

    def _read(self) -> Spool:
        spool = Spool()
        room = shutil.disk_usage(spool.directory).free // 2
        begin = told = time.monotonic()
        with lent_generators(self.numpy_bits):
            seed_all(mix(_STREAM))
            found = islice(iter(self._dataset), self._limit)
            try:
                for sample in found:
                    spool.append(sample)
                    if spool.nbytes > room or (self._limit is None and len(spool) > LIMIT_SAMPLES):
                        raise self._endless(spool)
                    now = time.monotonic()
                    if now - told >= PROGRESS_S:
                        told = now
                        self._tell(spool, now - begin)
            except (SampleError, SpoolError, StreamError) as error:
                raise type(error)(f"the {self._name} data, sample {len(spool)}: {error}") from error.__cause__
            except Exception as error:
                error.add_note(f"while reading sample {len(spool)} of the {self._name} data, which is a stream")
                raise
        spool.seal()
        return spool

    def _tell(self, spool: Spool, elapsed_s: float) -> None:
        print(
            f"reading the {self._name} data, a stream: {len(spool):,} samples, {spool.nbytes / 1e6:,.0f} MB "
            f"({len(spool) / elapsed_s:,.0f}/s)",
            file=sys.stderr,
            flush=True,
        )

    def _endless(self, spool: Spool) -> StreamError:
        return StreamError(
            f"the stream has given {len(spool):,} samples ({spool.nbytes / 1e9:.1f} GB in {spool.directory}) and has "
            "not ended. If it has no end, or is longer than you need, take a part: shoal.data.stream(data, samples=N). "
            "If it is that long, point TMPDIR to a larger disk, or prepare it as files with `shoal prepare`"
        )

    def __getstate__(self) -> dict[str, Any]:
        """The stream itself travels, and is read where it arrives."""
        return {"dataset": self._dataset, "name": self._name, "limit": self._limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["dataset"], state["name"], state["limit"])  # type: ignore[misc]  # as if it were made here
