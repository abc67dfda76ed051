"""Asking a run that is under way for another number of workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.core.errors import ConfigError, ShoalError, UserError
from shoal.core.world import View
from shoal.elastic.keys import read_key_file
from shoal.elastic.link import Link
from shoal.elastic.messages import Ask, Request, Scale
from shoal.launch.rundir import RunDir

KEY_NAME = "key"  # in the run directory
RESIZE = "size"  # the message by which the run itself asks for another number of workers
REACH_S = 5.0  # for the coordinator to answer at all; it may just be starting again
SETTLE_S = 120.0  # for the run to have the number: workers join and leave at the end of a step
_LOOK_S = 0.1
_BEAT_S = 0.5


class Requests(Protocol):
    """What is needed of a `Link`."""

    def request(self, operation: Request, timeout_s: float) -> Any: ...


@dataclass(frozen=True)
class Scaled:
    """What came of it. `awaited`: for whom the run still waited when the time was up."""

    before: View
    after: View
    awaited: tuple[str, ...] = ()


def key_file(run_dir: Path) -> Path:
    """Where a run keeps the key to it."""
    return run_dir / KEY_NAME


def scale(run_dir: Path, workers: int, settle_s: float = SETTLE_S) -> Scaled:
    """Have the run in `run_dir` go on with so many workers, and wait until it does. Raises `UserError`."""
    if workers < 1:
        raise ConfigError(f"--workers {workers}: at least 1 is needed; Ctrl-C in its terminal stops a run")
    record = RunDir(run_dir)
    if not record.path.is_dir():
        raise UserError(f"there is no run directory {run_dir}: `shoal train` has printed its name when it started")
    if not record.exists and not key_file(run_dir).exists():
        raise UserError(f"{run_dir} is no run directory: it has no config.yaml")
    if record.exists:
        _refuse_beyond(workers, record.saved())
    if not key_file(run_dir).exists():
        raise _not_running(run_dir)
    keys, address = read_key_file(key_file(run_dir))
    link = Link(address, keys, _BEAT_S)
    try:
        try:
            before = _view(link.request(Ask(), REACH_S))
        except ShoalError:
            raise _not_running(run_dir) from None
        return settle(link, before, workers, settle_s)
    finally:
        link.close()


def _refuse_beyond(workers: int, saved: Mapping[str, Any]) -> None:
    """Refuse what the configuration of the run does not allow."""
    most = (saved.get("elastic") or {}).get("max_workers")
    if most is not None and workers > most:
        raise ConfigError(f"--workers {workers}: this run was started with elastic.max_workers={most}")
    alone = saved.get("workers", 1) == 1 and most is None and saved.get("strategy") in ("auto", "single")
    if workers > 1 and alone:
        raise ConfigError(
            f"--workers {workers}: this run was started for one worker (strategy single): end it with Ctrl-C, and go "
            f"on with it by the same command with --max-workers {workers}"
        )


def settle(requests: Requests, before: View, workers: int, settle_s: float) -> Scaled:
    """Ask for so many workers, and wait until the view has them. Raises `UserError` if the run ends meanwhile."""
    until = time.monotonic() + settle_s
    asked: Request = Scale(workers)
    while True:
        try:
            report = requests.request(asked, REACH_S)
        except ShoalError:
            raise UserError("the run has ended meanwhile: it gives no answer any more") from None
        asked = Ask()
        view = _view(report)
        if view.size == workers:
            return Scaled(before, view)
        if time.monotonic() > until:
            return Scaled(before, view, tuple(str(one) for one in report["awaited"]))
        time.sleep(_LOOK_S)


def _view(report: Any) -> View:
    try:
        return View.from_json(report["view"])
    except (TypeError, KeyError, ValueError):
        raise UserError("the run answers in words unknown here: it is of another version of Shoal") from None


def _not_running(run_dir: Path) -> UserError:
    return UserError(
        f"the run in {run_dir} is not running now, or not on a host that can be reached from here: the same "
        f"`shoal train` command with --run-dir {run_dir} --workers N goes on with it"
    )
