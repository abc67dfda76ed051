"""The one tree of errors.

`UserError` is a mistake that its reader can mend: it is shown as one message without a traceback and ends the
command with status 2. Everything else under `ShoalError` is a failure of the run and ends it with status 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_SHORT_LIST = 10


class ShoalError(Exception):
    """Base of all errors that Shoal raises on purpose."""

    exit_status = 1


class UserError(ShoalError):
    """Something the user asked for cannot be done. The message says what, where, and what to do."""

    exit_status = 2


class ConfigError(UserError):
    """A setting is unknown, malformed, or contradicts another."""


class RunDirError(UserError):
    """A run directory cannot be used: not writable, full, or it belongs to another run."""


class DiskError(RunDirError):
    """The disk of a run directory has refused to be written in the middle of the run."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, or does not fit the program."""


class NonFiniteLoss(UserError):  # noqa: N818 - it names the event, as StopIteration does
    """The loss became NaN or infinite; the update was not applied."""

    def __init__(self, step: int, ranks: Iterable[int], last_good: str = "") -> None:
        self.step, self.ranks = step, tuple(ranks)
        workers = ", ".join(f"worker {rank}" for rank in self.ranks)
        kept = f"{last_good}\n" if last_good else ""
        super().__init__(
            f"the loss became NaN or infinite at step {step} on {workers}; the update was not applied.\n{kept}"
            "Try a lower learning rate, `--set clip.norm=1.0`, or look for bad values in the data of that step."
        )


class NonFiniteState(UserError):  # noqa: N818
    """A parameter became NaN or infinite though the loss was finite; such a model is not saved."""

    def __init__(self, step: int, name: str, last_good: str = "") -> None:
        self.step, self.name = step, name
        kept = f"{last_good}\n" if last_good else ""
        super().__init__(
            f"{name} holds NaN or infinite values after step {step}, though the loss was finite: it is not saved.\n"
            f"{kept}Try a lower learning rate, `--set clip.norm=1.0`, or look for a gradient that is not defined "
            "(the square root of 0, a division by 0)."
        )


class CollectiveTimeout(ShoalError):  # noqa: N818
    """A collective operation did not end in time. Names the workers that were not there."""

    def __init__(self, operation: str, missing: Iterable[int], elapsed_s: float) -> None:
        self.operation, self.missing, self.elapsed_s = operation, tuple(missing), elapsed_s
        names = ", ".join(f"worker {rank}" for rank in self.missing) or "a worker that cannot be named"
        super().__init__(
            f"waited {elapsed_s:.1f} s in {operation} for {names}, which did not arrive. If a step may take that long, "
            "raise comm.timeout_s"
        )


class PeerLost(ShoalError):  # noqa: N818
    """Another worker of the group is gone, so the operation cannot end. Not the cause of the failure."""


class PeerDiffers(PeerLost):
    """Another worker has built another program, so that no view with it can train. Not the cause of the failure."""


class WorkerFailed(ShoalError):  # noqa: N818
    """One or more workers failed. `by_rank` holds each one's own account of the cause."""

    def __init__(self, by_rank: Mapping[int, str], exit_status: int = 1) -> None:
        self.by_rank = dict(by_rank)
        self.exit_status = exit_status
        super().__init__("\n".join(self.by_rank[rank] for rank in sorted(self.by_rank)))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as ``did you mean 'allreduce'?``, with the list of what is known where it is short or the
    only help."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not close:
        return f"known: {', '.join(names)}"
    listed = f" (known: {', '.join(names)})" if len(names) <= _SHORT_LIST else ""
    return f"did you mean {close[0]!r}?{listed}"
