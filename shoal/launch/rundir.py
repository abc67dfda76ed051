"""A run directory: the configuration, the events, the summary, and where checkpoints and logs lie."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from shoal.core.config import MAY_CHANGE_ON_RESUME, Config, flatten
from shoal.core.errors import DiskError, RunDirError
from shoal.core.events import Event

FAILED = "failed"  # the status of a run that has ended by a fault
# what a launcher that other hosts join puts there before the script has run
_BEFORE_A_RUN = frozenset({"logs", "key", "coordinator.json", "coordinator.jsonl"})


def default_path(script: str | None, now: datetime) -> Path:
    """``runs/<script>-<date>-<time>`` below the working directory."""
    stem = Path(script).stem if script else "run"
    return Path("runs") / f"{stem}-{now:%Y%m%d-%H%M%S}"


def new_path(script: str | None) -> Path:
    """One that is not there: two runs may begin in the same second."""
    path = default_path(script, datetime.now())
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


class RunDir:
    """Paths of a run, and the few ways in which they are written. Several processes may append events."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.config_file = self.path / "config.yaml"
        self.events_file = self.path / "events.jsonl"
        self.summary_file = self.path / "summary.json"
        self.failure_file = self.path / "failure.json"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"

    @property
    def exists(self) -> bool:
        return self.config_file.exists()

    def create(self, config: Config, script: str | None) -> None:
        """Make the directory and save `config` in it, or open one that belongs to the same script and configuration.
        That keeps the configuration it has until `keep`: what ends before it has begun leaves no trace."""
        _refuse_unreadable(self.path)
        if self.exists:
            self._refuse_other(config, script)
        elif self.path.is_dir() and any(not _harmless(entry) for entry in self.path.iterdir()):
            raise RunDirError(
                f"{self.path} is not empty and is no run directory: choose another --run-dir, or empty it first"
            )
        new = not self.exists
        try:
            with self.writing(begun=False):
                self.path.mkdir(parents=True, exist_ok=True)
                for half_written in self.path.glob(".*.tmp"):
                    if not _is_being_written(half_written):  # but was, by a run that was killed meanwhile
                        half_written.unlink(missing_ok=True)
                if new:  # first of all: by it the directory is known as a run's, whenever this process is killed
                    self._save(config, script)
                self.checkpoints.mkdir(exist_ok=True)
                self.logs.mkdir(exist_ok=True)
        except RunDirError:
            if new:
                self._undo_create()
            raise

    def keep(self, config: Config, script: str | None) -> None:
        """A run with `config` has begun here, or goes on: from now on the directory is known by that."""
        with self.writing(begun=False):
            self._save(config, script)

    def _save(self, config: Config, script: str | None) -> None:
        text = yaml.safe_dump(to_save(config, script), sort_keys=False)
        with contextlib.suppress(OSError, ValueError):
            if self.config_file.read_text() == text:
                return
        replace_file(self.config_file, text)

    def _undo_create(self) -> None:
        """Leave no half-made directory. What is not empty is not ours to remove."""
        with contextlib.suppress(OSError):
            self.config_file.unlink(missing_ok=True)
            for made in (self.checkpoints, self.logs, self.path):
                if made.is_dir():
                    made.rmdir()

    def _refuse_other(self, config: Config, script: str | None) -> None:
        difference = other_run(self.saved(), config, script)
        if difference is not None:
            raise RunDirError(f"{self.path} {difference} choose another --run-dir")

    def saved(self) -> dict[str, Any]:
        """The configuration that was saved, with the script's identity under ``script``."""
        try:
            data = yaml.safe_load(self.config_file.read_text())
        except OSError as error:
            raise disk_error(self.config_file, error, begun=False) from error
        except (yaml.YAMLError, ValueError) as error:
            raise self._damaged("it is no YAML") from error
        if not isinstance(data, dict):
            raise self._damaged("it holds no settings")
        settings = {name: value for name, value in data.items() if name != "script"}
        if not isinstance(data.get("script"), dict | None):
            raise self._damaged("script is no mapping")
        try:
            Config.model_validate(settings)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors()[0]["loc"][:2])
            raise self._damaged(f"{place}: {error.errors()[0]['msg']}") from error
        return data

    def _damaged(self, how: str) -> RunDirError:
        return RunDirError(
            f"{self.config_file} is damaged ({how}), so it cannot be told whether this run may go on: "
            "restore that file, or choose another --run-dir"
        )

    def append(self, event: Event) -> None:
        """Add one line to the events. A single write on a file opened for appending, so lines never mix."""
        line = json.dumps(event.to_json(time.time()), separators=(",", ":"), default=str) + "\n"
        with self.writing():
            fd = os.open(self.events_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                _write_whole(fd, line.encode())
            finally:
                os.close(fd)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace the summary. One that tells of a failure never replaces one that has a result: it is put beside it,
        until there is a new result."""
        with self.writing():
            text = json.dumps(summary, indent=2) + "\n"
            if summary.get("status") == FAILED and self.has_result:
                replace_file(self.failure_file, text)
            else:
                replace_file(self.summary_file, text)
                self.failure_file.unlink(missing_ok=True)

    def summary(self) -> dict[str, Any] | None:
        """The summary of the last run in this directory that has come to a result; if none has, of the last that
        failed; else None."""
        return _read(self.summary_file)

    @property
    def has_result(self) -> bool:
        """Whether a run in this directory has ended in good order, and its summary says how."""
        summary = self.summary()
        return summary is not None and summary.get("status") != FAILED

    def faults(self) -> list[Any]:
        """What is known of the faults of this run before it went on, those of attempts that failed among them."""
        told = [_read(self.summary_file), _read(self.failure_file)]
        return [fault for one in told if one is not None for fault in one.get("faults", ())]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for one run at a time; the lock goes with the process, however it ends."""
        with self.writing(begun=False):
            self.path.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise RunDirError(
                f"{self.path} is in use by another run: wait for it, or choose another --run-dir"
            ) from None
        try:
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def writing(self, begun: bool = True) -> Iterator[None]:
        """Turn what the operating system says of this directory into a `disk_error`."""
        try:
            yield
        except OSError as error:
            raise disk_error(self.path, error, begun) from error


def to_save(config: Config, script: str | None) -> dict[str, Any]:
    """What a run is known by: its complete configuration, and the identity of its script."""
    return {"script": _identity(script), **config.to_json()}


def other_run(saved: Mapping[str, Any], config: Config, script: str | None) -> str | None:
    """What tells the run that was `saved` from this one, up to what to do about it; None: they are the same."""
    owner, mine = saved.get("script") or {}, _identity(script) or {}
    if owner.get("path") != mine.get("path") and owner.get("sha256") != mine.get("sha256"):
        return f"belongs to the script {owner.get('path')}, not to {mine.get('path')}:"
    # a setting that was not known yet when the run began had what is its default now
    defaults = flatten(Config(global_batch=config.global_batch).to_json())
    old = defaults | flatten({name: value for name, value in saved.items() if name != "script"})
    new = flatten(config.to_json())
    for key in sorted(set(old) | set(new)):
        if key in MAY_CHANGE_ON_RESUME or key.split(".")[0] in MAY_CHANGE_ON_RESUME or old.get(key) == new.get(key):
            continue
        if key == "passes" and new[key] == "grain":  # the same sums, in more passes
            continue
        return (
            f"belongs to a run with {key}={old.get(key)}, but now {key}={new.get(key)}: run it with the old value, or"
        )
    return None


def disk_error(path: Path, error: OSError, begun: bool = True) -> RunDirError:
    """What a user can do about `error` while writing below `path`. `begun`: the run has, and this is its end."""
    kind = DiskError if begun else RunDirError
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return kind(f"no space left on the disk of {path}: free some, then run the same command again to go on")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return kind(f"{path} cannot be written ({error.strerror}): choose another --run-dir")
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return kind(f"{path} cannot be used, because a file is in its place: choose another --run-dir")
    return kind(f"{path} cannot be used ({error.strerror or error}): choose another --run-dir")


def replace_file(path: Path, text: str) -> None:
    """Write `text` under a temporary name, flush it, and rename it: `path` is the old text or the new, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _refuse_unreadable(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("ascii", "backslashreplace")
        raise RunDirError(f"the run directory {shown} has a name that is no UTF-8: choose another --run-dir") from None


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _is_being_written(temporary: Path) -> bool:
    """Whether the process that began to write this file is there: the launcher writes to the same directory."""
    pid = temporary.name.split(".")[-2]
    return pid.isdigit() and Path("/proc", pid).exists()


def _write_whole(fd: int, data: bytes) -> None:
    """Append `data` in one write. A disk that takes only a part gets nothing: half a line would spoil the next."""
    written = os.write(fd, data)
    if written < len(data):
        os.ftruncate(fd, os.fstat(fd).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _harmless(entry: Path) -> bool:
    """Whether this may lie in a directory before it is a run's: logs, and what a killed run was about to write."""
    stems = ("config.yaml", *_BEFORE_A_RUN)  # a launcher may just be about to write the latter
    half_written = entry.suffix == ".tmp" and any(entry.name.startswith(f".{stem}.") for stem in stems)
    return entry.name in _BEFORE_A_RUN or half_written


def _identity(script: str | None) -> dict[str, str] | None:
    if script is None:
        return None
    path = Path(script).resolve()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # moved or removed while it runs
        digest = "unknown"
    return {"path": str(path), "sha256": digest}
