"""A second place for the checkpoints of a run: a folder for each as on disk, whose manifest is written last.

What has no manifest there is no checkpoint, so a copy that was broken off is never taken for one. `run.json` says whose
checkpoints they are. Nothing here waits or tries again: see `mirroring`. Needs no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from shoal.checkpoint.catalog import Entry, step_of
from shoal.checkpoint.durable import replacing, write_file
from shoal.checkpoint.manifest import MANIFEST, FileEntry, Manifest
from shoal.checkpoint.retention import Record
from shoal.core.errors import CheckpointError, UserError
from shoal.core.places import AbsentError, Place

FORMAT = 1
_RUN = "run.json"
_CHUNK_BYTES = 4 << 20

Moved = Callable[[int], None]  # told of bytes as they go; what it raises breaks the copy off


class MirrorError(UserError):
    """The place cannot be this run's mirror."""


@dataclass(frozen=True)
class Owner:
    """Whose checkpoints these are: a run's own name, and its configuration as its directory has it."""

    id: str
    saved: Mapping[str, Any]

    def encode(self) -> bytes:
        return (json.dumps({"format": FORMAT, "id": self.id, "saved": self.saved}, indent=2) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> Owner:
        """Raises ValueError with the reason if `encode` did not make `data`."""
        try:
            document = json.loads(data)
            found = cls(str(document["id"]), dict(document["saved"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError("it does not say whose checkpoints these are") from None
        if document.get("format") != FORMAT:
            raise ValueError(f"it has format {document.get('format')}, and this version of Shoal reads format {FORMAT}")
        return found


class Held:
    """A checkpoint on disk, held open: it may be removed meanwhile, and can still be copied. Close it.

    `arrived` are the files that have been copied and verified so far.
    """

    def __init__(self, path: Path) -> None:
        self.name, self.arrived = path.name, set[str]()
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.push(self._closing)
            try:
                self.manifest_bytes = (path / MANIFEST).read_bytes()
                self.manifest = Manifest.decode(self.manifest_bytes)
                self.files: dict[str, BinaryIO] = {
                    name: self._closing.enter_context((path / name).open("rb")) for name in self.manifest.files
                }
            except ValueError as error:
                raise CheckpointError(f"{path / MANIFEST} is damaged: {error}") from error
            undo.pop_all()
        self.path = path

    @property
    def step(self) -> int:
        return self.manifest.cursor.step

    def close(self) -> None:
        self._closing.close()


class Mirror:
    """The checkpoints at `place`. Raises `AccessError` for what a person can mend there, `MirrorError` where it cannot
    be this run's, `CheckpointError` for what is damaged, and `OSError` or what else the place has for what may pass."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._metas: dict[str, Mapping[str, Any]] = {}  # of all that is there: manifests are read once

    # ---- whose it is

    def owner(self) -> Owner | None:
        """Whose checkpoints these are; None where there are none yet."""
        at = self.place / _RUN
        try:
            data = at.read()
        except AbsentError:
            if self._listed():
                raise MirrorError(
                    f"{self.place} holds files, but is no mirror of a run ({_RUN} is missing): choose another --mirror"
                ) from None
            return None
        try:
            return Owner.decode(data)
        except ValueError as error:
            raise MirrorError(f"{at} is damaged ({error}): choose another --mirror, or restore that file") from None

    def claim(self, owner: Owner) -> None:
        """Make it the mirror of `owner`, or see that it is."""
        found = self.owner()
        if found is not None and found.id != owner.id:
            raise MirrorError(f"{self.place} is the mirror of another run: choose another --mirror")
        if found is None or found.saved != owner.saved:
            (self.place / _RUN).write(owner.encode())

    # ---- what is there

    def entries(self) -> list[Entry]:
        """The complete checkpoints, oldest first. Their paths are not of this machine."""
        found = [
            Entry(name, step, Path(f"{self.place}/{name}"))
            for name, inner in self._folders().items()
            if (step := step_of(name)) is not None and MANIFEST in inner
        ]
        return sorted(found, key=lambda entry: entry.step)

    def holds(self, held: Held) -> bool:
        """Whether this very checkpoint is there already, whole when it was copied."""
        try:
            return (self.place / held.name / MANIFEST).read() == held.manifest_bytes
        except AbsentError:
            return False

    def describe(self, name: str) -> tuple[Manifest, bytes]:
        at = self.place / name / MANIFEST
        try:
            data = at.read()
            return Manifest.decode(data), data
        except ValueError as error:
            raise CheckpointError(f"{at} is damaged: {error}") from error
        except AbsentError:
            raise CheckpointError(f"{at} is missing") from None

    # ---- copying

    def put(self, held: Held, moved: Moved) -> None:
        """Copy a checkpoint there, file by file, and read each back. May be called again where it was broken off."""
        folder = self.place / held.name
        if not held.arrived:
            (folder / MANIFEST).remove()  # what is there under this name is no checkpoint while its files change
        for name, entry in held.manifest.files.items():
            if name not in held.arrived:
                self._put_file(held.files[name], folder / name, entry, held.path / name, moved)
                held.arrived.add(name)
        (folder / MANIFEST).write(held.manifest_bytes)
        if (folder / MANIFEST).read() != held.manifest_bytes:
            raise OSError(f"{folder / MANIFEST} has not arrived as it was sent")
        self._metas[held.name] = held.manifest.meta

    def _put_file(self, source: BinaryIO, target: Place, entry: FileEntry, path: Path, moved: Moved) -> None:
        digest = hashlib.sha256()
        source.seek(0)
        with target.writing() as file:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                moved(len(chunk))
            if digest.hexdigest() != entry.sha256:
                raise CheckpointError(f"{path} is damaged: its checksum differs")
        if _digest(_chunks(target, moved)) != (entry.size_bytes, entry.sha256):
            raise OSError(f"{target} has not arrived as it was sent")

    def fetch(self, name: str, directory: Path) -> Path:
        """Copy a checkpoint from there to `directory`, where it appears when it is whole and every byte is right."""
        manifest, data = self.describe(name)
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / name) as temporary:
            for inner, entry in manifest.files.items():
                at = self.place / name / inner
                try:
                    found = write_file(temporary / inner, map(memoryview, _chunks(at)))
                except AbsentError:
                    raise CheckpointError(f"{at} is missing") from None
                if found != entry:
                    raise CheckpointError(f"{at} is damaged: {_difference(found, entry)}")
            write_file(temporary / MANIFEST, [memoryview(data)])
        return directory / name

    # ---- removing

    def tidy(self, obsolete: Callable[[Sequence[Record]], list[str]], step: int) -> None:
        """Remove what need not be kept, judged by what there was at `step`, and what copies that were broken off left.

        What is beyond `step` was passed over as damaged on resuming: it must not push out what is whole.
        """
        folders = self._folders()
        records = []
        for name, inner in folders.items():
            at = step_of(name)
            if at is None or at > step:
                continue
            if MANIFEST not in inner:
                self.remove(name)
                continue
            if name not in self._metas:
                try:
                    self._metas[name] = self.describe(name)[0].meta
                except CheckpointError:
                    continue
            records.append(Record(name, at, self._metas[name]))
        for name in obsolete(records):
            self.remove(name)

    def remove(self, name: str) -> None:
        """Its manifest goes first: what is left is no checkpoint, whenever this is broken off."""
        self._metas.pop(name, None)
        (self.place / name / MANIFEST).remove()
        (self.place / name).remove()

    # ---- looking

    def _folders(self) -> dict[str, set[str]]:
        folders: dict[str, set[str]] = {}
        for path in self._listed():
            folder, slash, inner = path.partition("/")
            if slash:
                folders.setdefault(folder, set()).add(inner)
        return folders

    def _listed(self) -> list[str]:
        """All files, by their paths below the place."""
        try:
            return [entry.place.url.removeprefix(self.place.url).lstrip("/") for entry in self.place.files()]
        except AbsentError:
            return []


def _chunks(at: Place, moved: Moved = lambda count: None) -> Iterator[bytes]:
    with at.open() as file:
        while chunk := file.read(_CHUNK_BYTES):
            moved(len(chunk))
            yield chunk


def _digest(chunks: Iterator[bytes]) -> tuple[int, str]:
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size_bytes += len(chunk)
    return size_bytes, digest.hexdigest()


def _difference(found: FileEntry, entry: FileEntry) -> str:
    if found.size_bytes != entry.size_bytes:
        return f"it has {found.size_bytes:,} bytes, not {entry.size_bytes:,}"
    return "its checksum differs"
