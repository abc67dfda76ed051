"""Who is told how far a job is."""

from __future__ import annotations


class Progress:
    """Told by one thread. This one says nothing; a terminal has another."""

    def stage(self, name: str, tasks: int, nbytes: int) -> None:
        """A stage begins, with so much to do."""

    def advance(self, tasks: int, rows: int, nbytes: int, *, done_before: bool = False) -> None:
        """So much more of the stage is done. `done_before`: by an earlier run of the same job."""

    def say(self, words: str) -> None:
        """Something that a person wants to know."""
