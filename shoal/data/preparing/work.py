"""The folder in which a job keeps what it has done so far, and how a data set comes out of it whole or not at all.

What lies there is named by a fingerprint of files, job and settings. So the same command goes on where it was, and any
other begins anew. Shards carry the fingerprint in their names: they never meet those of a data set that is replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import UserError
from shoal.data.manifest import NAME, Manifest
from shoal.data.places import AccessError, Place
from shoal.data.preparing.alone import LOCK
from shoal.data.preparing.engine import Say
from shoal.data.preparing.rejects import FILE as REJECTS
from shoal.data.preparing.request import Request

FOLDER = "_work"
_SHARD = re.compile(r"part-\d{5,}-[0-9a-f]{8}\.parquet")
_DRAFT = re.compile(r"\.(part-\d{5,}-[0-9a-f]{8}\.parquet|_manifest\.json|_rejects\.jsonl)\..*\.tmp")


class DataSetExists(UserError):  # noqa: N818 - it names what is there
    """There is a data set where one is to be made."""


@dataclass(frozen=True)
class Work:
    """`place` is the folder of this job, below `root`."""

    place: Place
    root: Place
    dest: Place
    fingerprint: str

    @classmethod
    def at(cls, request: Request, fingerprint: str, local_disk: bool, folder: str | os.PathLike[str] | None) -> Work:
        """Changes nothing yet. Raises `DataSetExists` unless it may be replaced."""
        dest = request.dest
        _refuse_data_set(request)
        _refuse_others(dest)
        if folder is not None:
            _refuse_file(Place.of(folder), "what is spilled")
            root = Place.of(folder) / f"prepare-{_place_mark(dest)}"
        elif dest.is_local or not local_disk:
            root = dest / FOLDER
        else:
            root = Place.of(_own_temporary() / f"prepare-{_place_mark(dest)}")
        return cls(root / fingerprint, root, dest, fingerprint)

    def settle(self, request: Request, say: Say) -> None:
        """Keep what can be gone on with, and remove what else was begun here. Raises `DataSetExists` if another job has
        just made one."""
        _refuse_data_set(request)
        older = {name for name in names_in(self.root) if name not in (self.fingerprint, LOCK)}
        if names_in(self.place):
            say("going on where it was broken off")
        elif older:
            say("what was begun here before is of other files, another job or other settings: beginning anew")
        for name in older:
            (self.root / name).remove()

    def shard_name(self, number: int) -> str:
        return f"part-{number:05}-{self.fingerprint[:8]}.parquet"

    def finish(self, manifest: Manifest) -> None:
        """Remove everything that is not of the data set: its work, shards of the one it replaces, drafts."""
        wanted = {shard.file for shard in manifest.shards}
        for name in names_in(self.dest):
            if (_SHARD.fullmatch(name) and name not in wanted) or _DRAFT.fullmatch(name):
                (self.dest / name).remove()
        self.place.remove()
        if self.root.is_local:
            with contextlib.suppress(OSError):  # the lock is still in it
                Path(self.root.path).rmdir()
        else:
            self.root.remove()


def lock_folder(dest: Place) -> Path:
    """Where those who would make a data set at `dest` on this machine meet, wherever they keep their work."""
    return Path(dest.path) / FOLDER if dest.is_local else _own_temporary() / f"prepare-{_place_mark(dest)}"


def _refuse_data_set(request: Request) -> None:
    dest = request.dest
    if not request.overwrite and (dest / NAME).exists():
        raise DataSetExists(f"{dest} holds a data set already: give another place, or --overwrite to replace it")


def _refuse_others(dest: Place) -> None:
    """Raises `UserError` where there is something that is not ours: other tools would take it for a part of the data
    set, and a slip of the pen fill somebody's folder."""
    _refuse_file(dest, "the data set")
    ours = (FOLDER, NAME, REJECTS)
    strange = [
        name
        for name in names_in(dest)
        if name not in ours and not _SHARD.fullmatch(name) and not _DRAFT.fullmatch(name)
    ]
    if strange:
        raise UserError(
            f"{dest} holds other things ({', '.join(sorted(strange)[:3])}): give a new or an empty folder for the data "
            "set"
        )


def _refuse_file(place: Place, what: str) -> None:
    if place.is_local and place.exists() and not place.is_dir():
        raise UserError(f"{place} is a file: give a folder for {what}")


def names_in(folder: Place) -> list[str]:
    """What lies in a folder, if there is one."""
    try:
        found = folder.fs.ls(folder.path, detail=False)
    except (FileNotFoundError, NotADirectoryError, AccessError):
        return []
    return [
        str(path).rstrip("/").rpartition("/")[2] for path in found if str(path).rstrip("/") != folder.path.rstrip("/")
    ]


def _place_mark(dest: Place) -> str:
    import hashlib

    return hashlib.sha256(dest.url.encode()).hexdigest()[:12]


def _own_temporary() -> Path:
    """A folder for temporary files that nobody else can write to."""
    path = Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o022:
        raise UserError(f"{path} belongs to somebody else: say where to keep what is spilled with --work DIR")
    return path
