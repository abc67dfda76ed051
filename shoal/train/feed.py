"""What a worker is fed: its part of each global batch, read ahead in the order in which it will be computed."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from shoal.core.cursor import Batches, Cursor
from shoal.core.grains import Grain
from shoal.data.loader import Loaded, Loader, Request
from shoal.data.processes import QUESTIONS_AHEAD
from shoal.data.sample_schema import describe_non_finite
from shoal.strategies.base import Pass, Portion
from shoal.train.cutting import plan_passes
from shoal.train.opening import Opened
from shoal.train.place import Place
from shoal.train.spec import RunSpec


class Feed:
    """Passes for this worker, from `cursor` to the end of the run, in order. What is read is a pure function of
    cursor, view and weights, so that it can be read ahead and thrown away at any time. `tell` is given a line where
    reading went wrong and was mended."""

    def __init__(
        self, spec: RunSpec, opened: Opened, place: Place, batches: Batches, weights: tuple[float, ...], cursor: Cursor,
        total_steps: int | None, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._strategy, self._opened, self._batches = spec.strategy, opened, batches
        self._world, self._weights, self._names = place.world, weights, spec.train.column_names
        self._total_steps = total_steps
        self._epochs = -(-total_steps // batches.per_epoch) if total_steps is not None and batches.samples else None
        if spec.growing is not None:  # of the next epoch nothing is known
            self._epochs = cursor.epoch + 1
        config, loading = opened.config, opened.config.loader
        self._loader = Loader(
            spec.train, config.seed, loading.shuffle, loading.processes, batches=batches,
            timeout_s=config.comm.timeout_s, tell=tell,
        )  # fmt: skip
        self._stream = self._loader.stream(self._requests(cursor), epochs=self._epochs)
        self.recent: list[Pass] = []  # that were given out last

    def take(self, cursor: Cursor) -> list[Pass]:
        """The passes of the step at `cursor`; steps must be taken in order. Empty for a worker without samples."""
        self.recent = [self._next(grains) for grains in self._plan(cursor)]
        return self.recent

    def reshare(self, weights: tuple[float, ...], cursor: Cursor) -> None:
        """Divide by other weights from `cursor` on; what was read ahead is dropped."""
        self._loader.close()
        self._weights = weights
        self._stream = self._loader.stream(self._requests(cursor), epochs=self._epochs)

    def bad_data(self) -> str:
        """Where what was given out last is not finite, and what to do about it; empty where all of it is."""
        for one in self.recent:
            found = describe_non_finite(one.batch, self._names, one.indices.tolist())
            if found is not None:
                return (
                    f"The data is at fault: {found}. Fill such values in before training, for files with "
                    "`shoal prepare … --job fill:columns=…`, or leave these samples out."
                )
        return ""

    def _next(self, grains: tuple[Grain, ...]) -> Pass:
        return self._read(self._stream, grains)

    def stream(self, parts: Iterable[Portion]) -> Iterator[Sequence[Pass]]:
        """The passes of each of `parts`, in order; none for a part without grains. When a part is drawn depends only on
        how many were yielded, not on what this worker has to read for them: to draw one may be collective. Where loader
        processes read ahead, it is a few before."""
        asked, plans = deque[Request](), deque[list[tuple[Grain, ...]]]()
        coming, cutting, config = iter(parts), self._opened.cutting, self._opened.config

        def requests() -> Iterator[Request | None]:
            while True:  # loader processes are asked before it is known for what
                yield asked.popleft() if asked else None

        def draw() -> None:
            for batch, grains in itertools.islice(coming, 1):
                plans.append(plan_passes(grains, cutting.merged, config.accumulate))
                asked.extend(Request(batch.cursor.epoch, one[0].start, one[-1].stop) for one in plans[-1])

        for _ in range(self._parts_ahead):
            draw()
        loaded = self._loader.stream(requests(), ahead=False)
        try:
            draw()
            while plans:
                self.recent = [self._read(loaded, grains) for grains in plans.popleft()]
                yield self.recent
                draw()
        finally:
            loaded.close()

    @property
    def _parts_ahead(self) -> int:
        """The same on every worker."""
        processes, passes = self._opened.config.loader.processes, self._opened.config.accumulate
        if not processes or not self._opened.cutting.merged:
            return min(processes, 1)
        return max(1, QUESTIONS_AHEAD * processes // passes)

    def _read(self, stream: Iterator[Loaded], grains: tuple[Grain, ...]) -> Pass:
        loaded = next(stream)
        assert (loaded.request.start, loaded.request.stop) == (grains[0].start, grains[-1].stop)
        return Pass(grains, loaded.indices, loaded.batch)

    def _plan(self, cursor: Cursor) -> list[tuple[Grain, ...]]:
        opened = self._opened
        mine = self._strategy.share(self._batches.at(cursor), self._world, self._weights)
        return plan_passes(mine, opened.cutting.merged, opened.config.accumulate)

    def _requests(self, cursor: Cursor) -> Iterator[Request]:
        while self._total_steps is None or cursor.step < self._total_steps:
            plan = self._plan(cursor)
            if not plan and self._weights[self._world.rank] == 0:
                return  # there will be nothing to read, and no end to looking for it
            for grains in plan:
                yield Request(cursor.epoch, grains[0].start, grains[-1].stop)
            cursor = self._batches.after(cursor)

    def close(self) -> None:
        """End the loader's processes. May be called twice."""
        self._loader.close()
