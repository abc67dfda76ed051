"""What a worker is fed: its part of each global batch, read ahead in the order in which it will be computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from shoal.core.cursor import Batches, Cursor
from shoal.core.grains import Grain
from shoal.data.loader import Loader, Request
from shoal.strategies.base import Pass, Portion
from shoal.train.cutting import plan_passes
from shoal.train.opening import Opened
from shoal.train.place import Place
from shoal.train.spec import RunSpec


class Feed:
    """Passes for this worker, from `cursor` to the end of the run, in order. What is read is a pure function of
    cursor, view and weights, so that it can be read ahead and thrown away at any time."""

    def __init__(
        self, spec: RunSpec, opened: Opened, place: Place, batches: Batches, weights: tuple[float, ...], cursor: Cursor,
        total_steps: int | None,
    ) -> None:  # fmt: skip
        self._strategy, self._opened, self._batches = spec.strategy, opened, batches
        self._world, self._weights = place.world, weights
        self._total_steps = total_steps
        self._epochs = -(-total_steps // batches.per_epoch) if total_steps is not None and batches.samples else None
        if spec.growing is not None:  # of the next epoch nothing is known
            self._epochs = cursor.epoch + 1
        config, loading = opened.config, opened.config.loader
        self._loader = Loader(
            spec.train, config.seed, loading.shuffle, loading.processes, batches=batches,
            timeout_s=config.comm.timeout_s,
        )  # fmt: skip
        self._stream = self._loader.stream(self._requests(cursor), epochs=self._epochs)

    def take(self, cursor: Cursor) -> list[Pass]:
        """The passes of the step at `cursor`; steps must be taken in order. Empty for a worker without samples."""
        return [self._next(grains) for grains in self._plan(cursor)]

    def reshare(self, weights: tuple[float, ...], cursor: Cursor) -> None:
        """Divide by other weights from `cursor` on; what was read ahead is dropped."""
        self._loader.close()
        self._weights = weights
        self._stream = self._loader.stream(self._requests(cursor), epochs=self._epochs)

    def _next(self, grains: tuple[Grain, ...]) -> Pass:
        loaded = next(self._stream)
        assert (loaded.request.start, loaded.request.stop) == (grains[0].start, grains[-1].stop)
        return Pass(grains, loaded.indices, loaded.batch)

    def stream(self, parts: Iterable[Portion]) -> Iterator[Sequence[Pass]]:
        """The passes of each of `parts`, in order. Parts are drawn only as they can be read: where loader processes
        read ahead, a few before they are yielded."""
        opened, drawn = self._opened, deque[list[tuple[Grain, ...]]]()

        def requests() -> Iterator[Request]:
            for batch, grains in parts:
                plan = plan_passes(grains, opened.cutting.merged, opened.config.accumulate)
                drawn.append(plan)
                for one in plan:
                    yield Request(batch.cursor.epoch, one[0].start, one[-1].stop)

        read: list[Pass] = []
        for loaded in self._loader.stream(requests(), ahead=False):
            grains = drawn[0][len(read)]
            assert (loaded.request.start, loaded.request.stop) == (grains[0].start, grains[-1].stop)
            read.append(Pass(grains, loaded.indices, loaded.batch))
            if len(read) == len(drawn[0]):
                drawn.popleft()
                yield read
                read = []

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
