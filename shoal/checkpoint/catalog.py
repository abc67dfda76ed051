"""The checkpoints of a run. Needs torch only where tensors are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.checkpoint.durable import remove_abandoned
from shoal.checkpoint.manifest import Manifest
from shoal.checkpoint.retention import Record
from shoal.core.errors import CheckpointError

if TYPE_CHECKING:
    from shoal.checkpoint.format import Checkpoint

_NAME = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
    """``step-00000050``: what the checkpoint after `step` steps is called."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a checkpoint's name states, or None if it is no such name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Entry:
    """A checkpoint by its name. It was whole when it got the name; reading it shows whether it still is."""

    name: str
    step: int
    path: Path


class Catalog:
    """The checkpoints below one directory, which need not exist."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def entries(self) -> list[Entry]:
        """All checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        found = [
            Entry(path.name, step, path)
            for path in self.directory.iterdir()
            if (step := step_of(path.name)) is not None and path.is_dir()
        ]
        return sorted(found, key=lambda entry: entry.step)

    def describe(self, entry: Entry) -> Manifest:
        """Cursor, meta and contents, from the manifest alone. Raises CheckpointError if that is damaged."""
        return Manifest.read(entry.path)

    def records(self, known: Mapping[str, Mapping[str, Any]] | None = None) -> list[Record]:
        """What retention is decided by, oldest first. A checkpoint with a damaged manifest is left out.

        `known` gives the meta of checkpoints whose manifests need not be read.
        """
        records = []
        for entry in self.entries():
            try:
                meta = (known or {}).get(entry.name)
                records.append(Record(entry.name, entry.step, self.describe(entry).meta if meta is None else meta))
            except CheckpointError:
                continue  # whoever resumes is told; it is no candidate, neither for keeping nor for removal
        return records

    def newest_valid(self, on_damage: Callable[[str], None]) -> Checkpoint | None:
        """Read the newest checkpoint that is whole, checking every byte; None if there are none at all.

        `on_damage` is told of each newer one that is damaged, in one line. Raises CheckpointError if all are.
        """
        from shoal.checkpoint.format import read

        damaged: list[str] = []
        for entry in reversed(self.entries()):
            try:
                checkpoint = read(entry.path)
                if checkpoint.cursor.step != entry.step:
                    raise CheckpointError(f"{entry.path} holds step {checkpoint.cursor.step}, which is not its name")
            except CheckpointError as error:
                damaged.append(str(error))
                on_damage(f"checkpoint {entry.name} is passed over: {error}")
            else:
                return checkpoint
        if damaged:
            raise CheckpointError(
                f"every checkpoint in {self.directory} is damaged:\n"
                + "".join(f"  {line}\n" for line in damaged)
                + "Choose another --run-dir to start anew, or delete that directory to start this run again."
            )
        return None

    def clean(self) -> list[str]:
        """Remove what killed writers have left behind; returns the names. Leaves live writers' work alone."""
        return remove_abandoned(self.directory)
