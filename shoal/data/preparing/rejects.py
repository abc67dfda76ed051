"""Records that cannot be used: they stop the job with a report, or are put aside with one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from shoal.core.errors import UserError
from shoal.data.formats.base import BadRecord
from shoal.data.places import Place

FAIL, REJECT = "fail", "reject"
FILE = "_rejects.jsonl"
_COPIED = 1 << 20


class BadRecordError(UserError):
    """A record cannot be used, and the job was to stop at such. Names file, offset and reason."""

    def __init__(self, bad: BadRecord) -> None:
        text = f"\n  it reads: {bad.text}" if bad.text else ""
        super().__init__(
            f"bad record in {bad.file} at offset {bad.offset}: {bad.reason}{text}\n"
            "  Mend it, or put such records aside with --bad-records reject"
        )


class Rejects:
    """What is done with the bad records of one task."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.found: list[BadRecord] = []
        self.unread = 0  # of them, those that gave no row at all

    def __call__(self, bad: BadRecord) -> None:
        if self._policy == FAIL:
            raise BadRecordError(bad)
        self.found.append(bad)

    def write(self, place: Place) -> None:
        """All of them, one a line, if there are any."""
        if self.found:
            place.write("".join(f"{json.dumps(asdict(bad), ensure_ascii=False)}\n" for bad in self.found).encode())


def gather(parts: Sequence[Place], folder: Place) -> None:
    """Put the rejects of all tasks into one file of the data set; without any, no file is left there."""
    whole = folder / FILE
    if not parts:
        whole.remove()
        return
    with whole.writing() as file:
        for part in parts:
            with part.open() as lines:
                while chunk := lines.read(_COPIED):
                    file.write(chunk)
