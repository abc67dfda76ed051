"""The one tree of errors.

`UserError` is a mistake that its reader can mend: it is shown as one message without a traceback and ends the
command with status 2. Everything else under `ShoalError` is a failure of the run and ends it with status 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_SHORT_LIST = 10


class ShoalError(Exception):
    """Base of all errors that Shoal raises on purpose. `again`: the same command, run again, may end otherwise."""

    exit_status = 1
    again = True


class UserError(ShoalError):
    """Something the user asked for cannot be done. The message says what, where, and what to do: until that is done,
    the same command ends in the same way."""

    exit_status = 2
    again = False


class ConfigError(UserError):
    """A setting is unknown, malformed, or contradicts another."""


class RunDirError(UserError):
    """A run directory cannot be used: not writable, full, or it belongs to another run."""


class DiskError(RunDirError):
    """The disk of a run directory has refused to be written in the middle of the run."""

    again = True


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, or does not fit the program."""


class NonFiniteLoss(UserError):  # noqa: N818 - it names the event, as StopIteration does
    """The loss became NaN or infinite; the update was not applied. `bad_data` says where the data of that step is not
    finite either, and what to do. `elsewhere`: it was the loss of others alone, who can say more about it."""

    def __init__(
        self, step: int, ranks: Iterable[int], last_good: str = "", bad_data: str = "", *, elsewhere: bool = False
    ) -> None:
        self.step, self.ranks, self.elsewhere = step, tuple(ranks), elsewhere
        workers = ", ".join(f"worker {rank}" for rank in self.ranks)
        kept = f"{last_good}\n" if last_good else ""
        remedy = "Try a lower learning rate, `--set clip.norm=1.0`, or look for bad values in the data of that step."
        super().__init__(
            f"the loss became NaN or infinite at step {step} on {workers}; the update was not applied.\n{kept}"
            f"{bad_data or remedy}"
        )


class ReplicasDiffer(ShoalError):  # noqa: N818
    """Workers that must hold the same model do not; nothing more was trained on it."""

    def __init__(self, step: int, odd: Iterable[str], most: str) -> None:
        self.step, self.odd = step, tuple(odd)
        hold = "holds" if len(self.odd) == 1 else "hold"
        super().__init__(
            f"{', '.join(self.odd)} {hold} other parameters or running statistics than {most} before step {step}, "
            "though all must hold the same: something has changed the model there alone. Look for code that depends on "
            "the rank, for a callback that writes to the model or runs it in training mode, for random values that are "
            "not torch's own; if there is none, for a faulty machine (`shoal doctor`)"
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
    """A collective operation did not end in time. Names the workers that were not there; `unheard`: they may well be,
    but the network does not carry what is sent to them."""

    def __init__(self, operation: str, missing: Iterable[int], elapsed_s: float, unheard: bool = False) -> None:
        self.operation, self.missing, self.elapsed_s, self.unheard = operation, tuple(missing), elapsed_s, unheard
        names = ", ".join(f"worker {rank}" for rank in self.missing) or "a worker that cannot be named"
        why = (
            "which does not get what this one sends: the link between their hosts is at fault"
            if unheard
            else "which did not arrive. If a step may take that long, raise comm.timeout_s"
        )
        super().__init__(f"waited {elapsed_s:.1f} s in {operation} for {names}, {why}")


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
