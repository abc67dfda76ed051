"""What a launcher is asked to do, what each worker is told of it, and what comes out, as values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from shoal.core.config import ElasticSettings
from shoal.core.errors import ConfigError
from shoal.elastic.keys import ClientKeys
from shoal.launch.interfaces import Endpoint
from shoal.launch.session import Layer

Mode = Literal["train", "dry-run"]
Role = Literal["worker", "evaluator"]


@dataclass(frozen=True)
class Job:
    """A script, or a payload, to be run by so many workers.

    `layers`: settings of the file and the flags. `threads`: of each worker (None: the cores are shared out).
    `relay`: the first worker's output goes through `sys.stdout` of this process, as a notebook needs it. `elastic`: how
    the run survives the loss of workers; it is needed before the script, which might state it, runs. `listen`: where
    other hosts join; their workers reach those of this host at that address. Its run directory is stated then.
    """

    workers: int
    script: str | None = None
    script_args: tuple[str, ...] = ()
    payload: Callable[[], Any] | None = None
    layers: tuple[Layer, ...] = ()
    mode: Mode = "train"
    json_output: bool = False
    threads: int | None = None
    relay: bool = False
    elastic: ElasticSettings = field(default_factory=ElasticSettings)
    listen: Endpoint | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers={self.workers}: at least 1 is needed")
        if self.script is None and self.payload is None:
            raise ConfigError("there is nothing to run: give a script")

    @property
    def survives(self) -> bool:
        """Whether there is something to be survived: a dry run has fixed members and no coordinator."""
        return self.mode == "train"

    @property
    def most_workers(self) -> int | None:
        """The most that may take part; None: any number. A run for one worker alone is not distributed at all, unless
        it was said that others may come."""
        if self.elastic.max_workers is None and self.workers == 1 and self.listen is None:
            return 1
        return self.elastic.max_workers

    @property
    def seed(self) -> int:
        """The seed as file and flags state it: known before the script runs, for the initial weights it
        builds."""
        stated = [settings["seed"] for _, settings in self.layers if settings.get("seed") is not None]
        try:
            return int(stated[-1]) if stated else 0
        except (TypeError, ValueError):
            return 0  # refused with all other settings, and with its name, once the script calls fit()

    @property
    def run_dir(self) -> str | None:
        """The run directory as file and flags state it."""
        stated = [settings["run_dir"] for _, settings in self.layers if settings.get("run_dir") is not None]
        return str(stated[-1]) if stated else None

    def threads_per_worker(self) -> int:
        """Threads for each worker: as stated, else as OMP_NUM_THREADS says, else an equal share of the
        cores."""
        if self.threads is not None:
            return self.threads
        stated = os.environ.get("OMP_NUM_THREADS", "")
        if stated.isdecimal() and int(stated) > 0:
            return int(stated)
        return max(1, len(os.sched_getaffinity(0)) // self.workers)


@dataclass(frozen=True)
class Post:
    """How a worker takes part in the membership of a run. `seat`: its own in the control page of its agent; `reach`:
    where peers on other hosts reach it; `address` and `keys`: of the coordinator."""

    key: str
    agent: str
    host: str
    address: str
    keys: ClientKeys
    beat_s: float
    start_s: float
    reach: str = ""


@dataclass(frozen=True)
class WorkerSpec:
    """What one worker is told. `rank` is the number under which it was started. Without a `post` the members of the run
    are fixed. `home`: the run directory is on its host. `follows`: what an evaluator follows (see `Session`)."""

    rank: int
    size: int
    threads: int
    seed: int
    script: str | None
    script_args: tuple[str, ...]
    layers: tuple[Layer, ...]
    mode: Mode
    json_output: bool
    rendezvous: str
    working_directory: str
    search_path: tuple[str, ...]
    seat: int = 0
    home: bool = True
    role: Role = "worker"
    follows: tuple[str, ...] = ()
    post: Post | None = None

    def to_json(self) -> bytes:
        """For a child process only: it holds the run's client key."""
        post = asdict(self.post) if self.post is not None else None
        return json.dumps({**vars(self), "post": post}, default=_plain).encode()

    @staticmethod
    def from_json(data: bytes) -> WorkerSpec:
        fields = json.loads(data)
        fields["layers"] = tuple((where, settings) for where, settings in fields["layers"])
        for name in ("script_args", "search_path", "follows"):
            fields[name] = tuple(fields[name])
        if fields["post"] is not None:
            fields["post"] = Post(**{**fields["post"], "keys": ClientKeys(**fields["post"]["keys"])})
        return WorkerSpec(**fields)


def _plain(value: object) -> object:
    """Settings may hold values of their own: groups such as `Clip`, lengths, which are written as text."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    return dict(value) if isinstance(value, Mapping) else str(value)


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `status` is that of the command; `error` is what was shown to the user."""

    status: int
    summary: dict[str, Any] | None = None
    run_dir: str | None = None
    error: str | None = None
