"""A run and its mirror: whether a place is this run's, and where a run goes on that has checkpoints here and there.

A run has a name of its own, kept in `mirror.json` of its directory and in `run.json` of its mirror, so that two runs
of the same script never mix their checkpoints.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shoal.checkpoint.catalog import Catalog, Entry
from shoal.checkpoint.mirror import Mirror, MirrorError, Owner
from shoal.checkpoint.mirroring import Mirroring, pause_s
from shoal.checkpoint.retention import Record
from shoal.core.config import Config
from shoal.core.errors import CheckpointError, UserError
from shoal.core.events import Event, Mirrored, Warned
from shoal.core.places import Place, UnreachableError
from shoal.launch.rundir import RunDir, other_run, replace_file, to_save

_FILE = "mirror.json"
_ATTEMPTS = 5  # at reading what a run goes on from

Tell = Callable[[Event], None]


class RunMirror:
    """The mirror of the run in `run_dir`, as the worker that keeps the record uses it."""

    def __init__(self, mirror: Mirror, run_dir: RunDir) -> None:
        self._mirror, self._run_dir = mirror, run_dir
        self._catalog = Catalog(run_dir.checkpoints)

    @classmethod
    def of(cls, config: Config, number: int, run_dir: RunDir) -> RunMirror | None:
        """That of the script's fit() call `number`, if the user wants one."""
        url = config.checkpoint.mirror
        if url is None:
            return None
        place = Place.of(url)
        return cls(Mirror(place / f"fit-{number + 1}" if number > 0 else place), run_dir)

    # ---- before the run

    def look(self) -> Owner | None:
        """Whose checkpoints it holds; None: nobody's, or it does not answer and the run can go on from here. Raises
        `UserError` where it cannot be used, or where nothing here tells whether the run has begun."""
        place = self._mirror.place
        if place.is_local and Path(place.path).is_relative_to(self._run_dir.path):
            raise MirrorError(f"the mirror {place} lies in the run directory {self._run_dir.path}: give a second place")
        try:
            return self._mirror.owner()
        except Exception as error:  # each kind of place has errors of its own
            if not _may_pass(error):
                raise
            if self._begun:
                return None
            raise self._silent(error) from error

    def check(self, owner: Owner | None, config: Config, script: str | None) -> None:
        """Raise `MirrorError` where it is another run's."""
        if owner is None:
            return
        difference = other_run(owner.saved, config, script)
        if difference is not None:
            raise MirrorError(f"{self._mirror.place} {difference} choose another --mirror")
        if self._begun and owner.id != self._name():
            raise MirrorError(
                f"{self._mirror.place} is the mirror of another run than that in {self._run_dir.path}: choose another "
                "--mirror, or another --run-dir to go on from the mirror"
            )

    def claim(self, config: Config, script: str | None, tell: Tell) -> None:
        """Make it this run's, whose directory is there. A place that does not answer is left to the background."""
        try:
            found = self._mirror.owner()
            name = found.id if found is not None and not self._begun else self._name() or uuid.uuid4().hex
            self._note(name)
            self._mirror.claim(Owner(name, to_save(config, script)))
        except Exception as error:
            if not _may_pass(error):
                raise
            if self._name() is None:
                self._note(uuid.uuid4().hex)
            tell(Warned(f"the mirror {self._mirror.place} does not answer ({_reason(error)}): it is tried again"))

    def bring_newest(self, tell: Tell) -> None:
        """See to it that the newest good checkpoint of both places is in the run directory, and say which that is. One
        that is damaged is named, and an older one taken."""
        try:
            there = self._try_again(self._mirror.entries)
        except Exception as error:
            if not _may_pass(error):
                raise
            if not self._begun:
                raise self._silent(error) from error
            return  # `claim` has said so
        if not there:
            return
        here = self._newest_here()
        fetched = self._fetch([entry for entry in there if here is None or entry.step > here], tell)
        place, newest = str(self._mirror.place), there[-1]
        if fetched is not None:
            than = f"it is newer than step {here:,} here" if here is not None else "there is none here"
            tell(Mirrored(fetched.name, place, "resumed", reason=than))
        elif here is None:
            raise CheckpointError(
                f"every checkpoint in {place} is damaged: choose another --run-dir and another --mirror to start anew"
            )
        elif newest.step < here:
            tell(Mirrored(newest.name, place, "older", reason=f"step {here:,} here is newer"))

    # ---- during the run

    def start(self, config: Config, script: str | None, obsolete: Callable[[Sequence[Record]], list[str]]) -> Mirroring:
        """Begin to copy, the newest checkpoint here first: whoever wrote it may have ended before it was copied."""
        mirroring = Mirroring(self._mirror, Owner(self._name() or uuid.uuid4().hex, to_save(config, script)), obsolete)
        for newest in self._catalog.entries()[-1:]:
            mirroring.offer(newest.path)
        return mirroring

    # ---- parts

    def _fetch(self, entries: Sequence[Entry], tell: Tell) -> Entry | None:
        """Bring the newest good one of `entries`; returns it, or None if none is good."""
        for entry in reversed(entries):
            try:
                self._try_again(partial(self._mirror.fetch, entry.name, self._catalog.directory))
            except CheckpointError as error:
                tell(Warned(f"checkpoint {entry.name} of the mirror is passed over: {error}"))
            else:
                return entry
        return None

    def _try_again(self, do: Callable[[], Any]) -> Any:
        for attempt in range(1, _ATTEMPTS):
            try:
                return do()
            except Exception as error:
                if not _may_pass(error):
                    raise
                time.sleep(pause_s(attempt))
        return do()

    def _newest_here(self) -> int | None:
        """The step of the newest good checkpoint on this disk; those that are damaged are named by whoever reads it."""
        try:
            found = self._catalog.newest_valid(lambda words: None)
        except CheckpointError:
            return None
        return found.cursor.step if found is not None else None

    @property
    def _begun(self) -> bool:
        return bool(self._catalog.entries())

    def _silent(self, error: Exception) -> MirrorError:
        return MirrorError(
            f"the mirror {self._mirror.place} does not answer ({_reason(error)}), so it cannot be told whether this "
            "run is to go on from there: try again, or leave --mirror out to begin anew"
        )

    def _name(self) -> str | None:
        try:
            return str(json.loads((self._run_dir.path / _FILE).read_text())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _note(self, name: str) -> None:
        with self._run_dir.writing(begun=False):
            words = {"id": name, "place": str(self._mirror.place)}
            replace_file(self._run_dir.path / _FILE, json.dumps(words, indent=2) + "\n")


def _may_pass(error: Exception) -> bool:
    """Whether a place may answer later, without anybody's doing."""
    return not isinstance(error, UserError) or isinstance(error, UnreachableError)


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
