"""What a run is made of, before it runs: the program, the data and the settings, validated together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.comm.codecs.names import check_codec
from shoal.core.config import Config
from shoal.core.consistency import parse
from shoal.core.errors import ConfigError, nearest
from shoal.data.following import FollowingSource
from shoal.data.source import Source
from shoal.store.placement import placements
from shoal.strategies.base import Strategy
from shoal.strategies.names import check_pair
from shoal.strategies.program import Program
from shoal.train.callbacks import Callback
from shoal.train.initialise import known as known_initialisations
from shoal.train.schedules import Schedule, TorchSchedule


@dataclass(frozen=True)
class RunSpec:
    """Everything that `Run` needs. A spec that exists has been checked as far as it can be without running."""

    config: Config
    program: Program
    strategy: Strategy[object]
    train: Source
    test: Source | None = None
    schedule: Schedule | TorchSchedule | None = None
    callbacks: Sequence[Callback] = field(default=())

    @property
    def data_digest(self) -> str | None:
        """What a run that goes on must find again in its training data, where that is known and asked for."""
        return self.train.digest if self.config.loader.once == "on" else None

    def __post_init__(self) -> None:
        config, samples = self.config, len(self.train)
        object.__setattr__(self, "train", self.train.under(config.loader))
        if self.test is not None:
            object.__setattr__(self, "test", self.test.under(config.loader))
        if self.growing is not None:
            self._check_growing()
        elif config.global_batch > samples:
            raise ConfigError(
                f"global_batch={config.global_batch} is larger than the data set, which has {samples} samples: "
                f"give at most {samples}"
            )
        if isinstance(self.test, FollowingSource):
            raise ConfigError(f"the test data follows {self.test.place}, but only the training data may grow")
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(f"callbacks: {callback!r} is no shoal.callbacks.Callback: give a list of instances")
        if config.init not in known_initialisations():
            raise ConfigError(f"init={config.init!r} is unknown: {nearest(config.init, known_initialisations())}")
        if config.elastic.max_workers is not None and not self.strategy.needs.survives:
            raise ConfigError(
                f"elastic.max_workers={config.elastic.max_workers}, but a run with strategy={self.strategy.name} does "
                "not survive a change of its workers: use --strategy allreduce, or leave it out"
            )
        if config.statistics == "global" and not self.strategy.needs.statistics:
            raise ConfigError(
                f"statistics=global, but with strategy={self.strategy.name} workers do not compute one global batch at "
                "the same time, so batch normalisation has nothing to combine: use --strategy allreduce, or "
                "statistics=grain"
            )
        self._check_workers()
        self._check_names()

    @property
    def growing(self) -> FollowingSource | None:
        """The training data, where it is not all there when the run begins."""
        return self.train if isinstance(self.train, FollowingSource) else None

    def _check_growing(self) -> None:
        needs = self.strategy.needs
        if needs.leases or needs.servers:
            raise ConfigError(
                f"the training data grows (follow), which strategy={self.strategy.name} cannot follow: "
                "use --strategy allreduce"
            )

    def _check_workers(self) -> None:
        config = self.config
        most = self.strategy.needs.max_workers
        if most is not None and config.workers > most:
            raise ConfigError(
                f"strategy={self.strategy.name} runs on at most {most} worker, but workers={config.workers}: "
                "use --strategy allreduce"
            )

    def _check_names(self) -> None:
        """What is wrong is said even where this run will not read it: the next one will, on more workers or servers."""
        config = self.config
        check_codec(config.comm.codec)
        check_pair(config.hybrid)
        parse(config.server.consistency)
        placements.get(config.server.placement)
        monitor, measured = config.checkpoint.monitor, self.measured
        if monitor not in measured:
            raise ConfigError(
                f"checkpoint.monitor={monitor!r} says which checkpoint is the best, but nothing measures it: "
                f"{nearest(monitor, measured)}; metrics={{...}} of the Trainer adds more"
            )

    @property
    def measured(self) -> list[str]:
        """The names of what an evaluation gives."""
        return [f"test_{name}" for name in ("loss", *self.program.metrics)]
