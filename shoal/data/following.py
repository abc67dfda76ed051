"""A folder or prefix that receives files while training goes on: every file's samples are used once in the whole run.

An epoch is what has arrived since the epoch before. When it begins, the first worker looks, all workers agree on what
it has seen (`Instalment`), and that is kept with the run's state: who joins, or goes on later, has the same files.
A file has arrived when two looks find it unchanged; names that begin with a dot or an underscore are left out, so
whoever writes can use such a name and rename. It ends when a file ``_END`` or ``_SUCCESS`` is there, or when nothing
has come for `follow_s` seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence

from shoal.core.arrivals import NOTHING, Arrived, Instalment, settled
from shoal.core.config import LoaderSettings
from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError, UserError
from shoal.core.order import Indices, Order
from shoal.core.places import AbsentError, Place, UnreachableError
from shoal.data.opening import FOLLOW_S
from shoal.data.request import Batch, Loaded, Request
from shoal.data.source import Source, as_source

ENDS = ("_END", "_SUCCESS")
LOOK_S = 0.5  # between two looks
_WHOLE_AT_ONCE = ("s3", "s3a", "gs", "gcs", "abfs", "az")  # an object appears when it is complete

OpenFiles = Callable[[Sequence[Place]], Source]


class FollowingSource(Source):
    """The samples of the current instalment; none before the first. `open_files` makes a source of some files."""

    def __init__(self, place: Place, open_files: OpenFiles, follow_s: float = FOLLOW_S) -> None:
        if follow_s <= 0:
            raise ConfigError(f"follow_s={follow_s}: it is how long to wait for another file, so give more than zero")
        self.place, self.follow_s = place, follow_s
        self._open_files = open_files
        self._current: Source | None = None
        self._ready: tuple[Instalment, Source | None] | None = None  # what is about to be taken
        self._sample: Source | None = None
        self._settings = LoaderSettings()

    def __len__(self) -> int:
        """Of the current instalment."""
        return len(self._current) if self._current is not None else 0

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        assert self._current is not None, "nothing has arrived"
        return self._current.fetch(indices, epoch, seed)

    def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
        if self._current is None:
            return super().order(seed, shuffle, batches)
        return self._current.order(seed, shuffle, batches)

    def under(self, settings: LoaderSettings) -> Source:
        self._settings = settings
        return self

    def stream(
        self, order: Order, seed: int, requests: Iterable[Request], *, epochs: int | None = None, ahead: bool = True
    ) -> Generator[Loaded, None, None]:
        source = self._current
        if source is None:
            return super().stream(order, seed, requests, epochs=epochs, ahead=ahead)
        return source.stream(order, seed, requests, epochs=epochs, ahead=ahead)

    def readable(self, indices: Indices) -> Indices:
        return self._current.readable(indices) if self._current is not None else indices

    @property
    def bytes_read(self) -> int:
        """Of all instalments so far."""
        return super().bytes_read + (self._current.bytes_read if self._current is not None else 0)

    def count(self, instalment: Instalment) -> int:
        """The number of samples in `instalment`, of which it makes ready to be taken. Raises `UserError` where a file
        of it is not what it was when it was agreed on."""
        if self._ready is None or self._ready[0] != instalment:
            for file in instalment.files:
                self._check(file)
            places = [self.place / file.name for file in instalment.files if file.nbytes]
            self._ready = (instalment, self._open_files(places).under(self._settings) if places else None)
        source = self._ready[1]
        return len(source) if source is not None else 0

    def take(self, instalment: Instalment) -> None:
        """From now on the samples are those of `instalment`. Raises what `count` raises."""
        self.count(instalment)
        assert self._ready is not None
        if self._current is not None:
            self.add_bytes_read(self._current.bytes_read)
        self._current, self._ready = self._ready[1], None

    def sampled(self) -> Source:
        """The first file, to look at before the run begins; waits for it."""
        if self._sample is None:
            watch = Watch(self)
            while (found := watch.look(NOTHING, 0)) is None:
                time.sleep(LOOK_S)
            if found.over:
                waited = f"waited {watch.waited_s:.0f} s"
                raise UserError(f"no file has come to {self.place} ({waited}): check the path, or raise follow_s")
            self._sample = self._open_files([self.place / found.files[0].name])
        return self._sample

    def _check(self, file: Arrived) -> None:
        at = self.place / file.name
        try:
            nbytes = at.nbytes()
        except AbsentError:
            raise UserError(f"{at} has gone while an epoch is to be trained on it: put it back") from None
        if nbytes != file.nbytes:
            raise UserError(
                f"{at} has changed since it arrived ({file.nbytes:,} bytes then, {nbytes:,} now): write to a name that "
                "begins with a dot, and rename it when it is complete"
            )


class Watch:
    """Looks for what has arrived; one for each wait. A place that does not answer is looked at again until the wait is
    over."""

    def __init__(self, source: FollowingSource) -> None:
        self._source = source
        self._before: list[Arrived] = []
        self._begun = time.monotonic()
        self._changed = self._begun

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._begun

    def look(self, last: Instalment, epoch: int) -> Instalment | None:
        """What there is for `epoch`, which comes after `last`; None: nothing yet. Look again after `LOOK_S`."""
        late = time.monotonic() - self._changed > self._source.follow_s
        try:
            ended = any((self._source.place / name).exists() for name in ENDS)  # before the files: then all are there
            now = self._list()
        except Exception as error:  # each kind of place has errors of its own
            lasting = isinstance(error, UserError) and not isinstance(error, UnreachableError)
            if late or lasting:
                raise
            return None
        if now != self._before:
            self._changed = time.monotonic()
        at_once = ended or self._source.place.protocol in _WHOLE_AT_ONCE
        complete = now if at_once else settled(self._before, now)
        self._before = now
        return last.next(epoch, complete, ended or late)

    def _list(self) -> list[Arrived]:
        root = self._source.place
        try:
            entries = root.files()
        except AbsentError:  # whoever writes there has not begun
            return []
        names = [entry.place.url.removeprefix(root.url).lstrip("/") for entry in entries]
        return [Arrived(name, entry.nbytes, entry.mark) for name, entry in zip(names, entries, strict=True)]


def follow(
    where: str | os.PathLike[str], read: Callable[[list[str]], object], follow_s: float = FOLLOW_S
) -> FollowingSource:
    """Train on files as they come to `where`, each once. `read` is given the paths of some files and returns their
    samples, as anything that a Trainer takes."""
    return FollowingSource(
        Place.of(where), lambda places: as_source(read([str(place) for place in places]), "train"), follow_s
    )
