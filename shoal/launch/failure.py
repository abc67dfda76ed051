"""What went wrong in a run: a worker's own account of it, which accounts are the cause, and how they are
shown."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoal.core.errors import CollectiveTimeout, DiskError, NonFiniteLoss, PeerLost, ShoalError
from shoal.core.vitals import stopped
from shoal.launch.frames import user_traceback

Kind = Literal["user", "disk", "exception", "exit", "ended", "signal", "frozen", "hang", "peer"]
_MESSAGE_LIMIT = 100_000
_BEFORE = ("start", "meet", "compare")  # the phases before the first step
_NO_PROGRESS = "no progress for"
_SILENT = re.compile(r"for ([\d.]+) s")
# what the kernel sends a process for what it has done itself
_OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS})


@dataclass(frozen=True)
class Account:
    """Why one worker ended. `message` is for the user to read, `cause` is one line for the log.

    Kinds: ``user`` (a mistake, shown without frames), ``disk`` (its run directory could no longer be written;
    without frames, too), ``exception`` (with the user's frames), ``exit`` (the script left with a status), ``ended``
    (the process did, without a word), ``signal`` (it was killed), ``frozen`` (it gave no sign of life), ``hang`` (it
    made no progress), ``peer`` (it ended only because another did).
    `from_within`: the worker has done it itself, and would again in the same place. `again`: the same command, run
    again, may end otherwise.
    """

    kind: Kind
    message: str
    cause: str
    status: int = 1
    from_within: bool = True
    again: bool = True

    def to_message(self) -> dict[str, Any]:
        return {"type": "failed", **vars(self)}

    @staticmethod
    def from_message(message: Mapping[str, Any]) -> Account:
        kind, status = message.get("kind", "exception"), int(message.get("status") or 1)
        text = str(message.get("message", ""))
        cause = str(message.get("cause") or _last_line(text))
        return Account(kind, text, cause, status, again=bool(message.get("again", True)))


def account_of(error: BaseException) -> Account | None:
    """A worker's account of what its script raised; None if that is no failure (``sys.exit()``)."""
    if isinstance(error, SystemExit):
        return _account_of_exit(error)
    text = str(error)[:_MESSAGE_LIMIT]
    if isinstance(error, PeerLost | CollectiveTimeout) or (isinstance(error, NonFiniteLoss) and error.elsewhere):
        return Account("peer", text, text)
    if isinstance(error, DiskError):
        return Account("disk", text, _first_line(text), error.exit_status)
    if isinstance(error, ShoalError):
        kind: Kind = "user" if error.exit_status == 2 else "exception"
        return Account(kind, text, _first_line(text), error.exit_status, again=error.again)
    cause = f"{type(error).__name__}: {_first_line(text)}".removesuffix(": ")
    return Account("exception", user_traceback(error)[-_MESSAGE_LIMIT:], cause)


def _account_of_exit(error: SystemExit) -> Account | None:
    code = error.code
    if code is None or code == 0:
        return None
    if isinstance(code, int):
        text = f"the script ended itself with status {code}"
        return Account("exit", text, text, code & 0xFF or 1)
    return Account("exit", str(code), f"the script ended itself: {_first_line(str(code))}")


def account_of_end(code: int, out_of_memory: bool = False) -> Account:
    """The account of a process that ended without giving one: `code` is its status, or minus the signal.
    `out_of_memory`: the kernel has ended a process for its memory meanwhile."""
    if code >= 0:
        text = f"the process ended with status {code} in the middle of the run (by os._exit, perhaps)"
        return Account("ended", text, f"ended with status {code}")
    number = -code
    if out_of_memory and number == signal.SIGKILL:
        cause = "ended by the kernel: out of memory (SIGKILL)"
        hint = "Try fewer workers, a smaller batch, or `--set accumulate=2`."
        return Account("signal", f"{cause}. {hint}", cause, from_within=False)
    try:
        name = f" ({signal.Signals(number).name})"
    except ValueError:
        name = ""
    cause = f"killed by signal {number}{name}"
    hint = {
        int(signal.SIGKILL): "Nobody in this run sent it. Most often the machine has run out of memory and the "
        "kernel ended the largest process (`dmesg` says so): try fewer workers or a smaller batch.",
        int(signal.SIGSEGV): "A compiled library has failed. The worker's output shows where Python called it.",
        int(signal.SIGBUS): "Often a file that was mapped into memory became shorter, or /dev/shm is full.",
    }.get(number, "")
    within = number in _OWN_SIGNALS
    return Account("signal", f"{cause}. {hint}".removesuffix(" "), cause, from_within=within)


def silence_s(cause: str) -> float | None:
    """For how long a process gave no sign of life or made no progress, where that is the cause of its end."""
    silent = _SILENT.search(cause)
    return float(silent[1]) if silent is not None else None


def no_progress(cause: str) -> bool:
    """Whether a process was ended because it made no progress, though it lived."""
    return cause.startswith(_NO_PROGRESS)


def account_of_freeze(state: str, why: str) -> Account:
    """The account of a process that gave no sign of life, `why` says for how long; `state` is the kernel's letter for
    what it is doing."""
    cause = ", ".join(filter(None, (stopped(state), why or "no sign of life")))
    hint = {
        "T": "Somebody has stopped the process, and nobody let it go on.",
        "D": "The process waits for a disk or a network file system that does not answer.",
    }.get(state, "")
    return Account("frozen", f"{cause}. {hint}".removesuffix(" "), cause, from_within=False)


def account_of_hang(seconds: float, phase: str, allowed: str) -> Account:
    """The account of a process that lives but does not get on; `allowed`: the setting that says how long it may."""
    cause = f"{_NO_PROGRESS} {seconds:.0f} s in {phase}"
    return Account("hang", f"{cause}. If a step may take that long, raise {allowed}.", cause)


def account_of_standstill(seconds: float, phase: str) -> Account:
    """The account of a process that does not come to the end of its step, though the run was asked to stop. Nobody has
    said that it may not take so long; but somebody waits for the end."""
    cause = f"{_NO_PROGRESS} {seconds:.0f} s in {phase} after the run was asked to stop"
    return Account("hang", cause, cause, from_within=False)


@dataclass(frozen=True)
class Casualty:
    """An account, and where its worker was: as what rank of how many, in which view and step, doing what. `failed_s`:
    when, by the monotonic clock. `stack`: its Python stack as seen from outside, where there still was a process."""

    rank: int
    account: Account
    step: int
    phase: str
    detected_s: float = 0.0
    stack: str = ""
    size: int = 0
    view: int = 0
    failed_s: float = 0.0


def causes(casualties: Mapping[int, Casualty]) -> list[Casualty]:
    """Those that did not merely follow another's end, in rank order; all of them if there are no others."""
    ordered = sorted(casualties.values(), key=lambda one: one.rank)
    return [one for one in ordered if one.account.kind != "peer"] or ordered


def render(casualties: Mapping[int, Casualty], workers: int, host: str, output: Mapping[int, str]) -> str:
    """One readable block for the terminal. What several workers say in the same words is said once.
    `output` adds a worker's last words, or where they are found, to an account that does not explain
    itself. Both are by the workers' numbers."""
    same: dict[tuple[str, str], list[Casualty]] = {}
    words = {id(one): output.get(number, "") for number, one in casualties.items()}
    for one in causes(casualties):
        same.setdefault((one.account.kind, one.account.message), []).append(one)
    return "\n\n".join(_render(group, workers, host, words[id(group[0])]) for group in same.values())


def _render(group: list[Casualty], workers: int, host: str, words: str) -> str:
    first = group[0]
    if first.account.kind == "user":
        return f"shoal: error: {first.account.message}"
    others = f" (and {len(group) - 1} other{'s' if len(group) > 2 else ''})" if len(group) > 1 else ""
    who = f"worker {first.rank}{others}{of(first.rank, first.size or workers)}"
    heading = f"shoal: {who} on {host} failed {where(first)}"
    parts = [heading, first.account.message]
    if first.stack:
        parts.append(_stack(first))
    elif words and first.account.kind in ("signal", "exit", "ended", "frozen", "hang"):
        parts.append(words)
    return "\n\n".join(parts)


def lost(one: Casualty, workers: int, host: str, follows: str) -> str:
    """One line for a worker that the run goes on without, where what ended it came from outside: nothing in its program
    or output would explain it. Its stack, where one was taken, stands below."""
    who = f"worker {one.rank}{of(one.rank, one.size or workers)}"
    line = f"shoal: {who} on {host} was lost {where(one)}: {one.account.cause}"
    line = f"{line}; {follows}" if follows else line
    return f"{line}\n\n{_stack(one)}" if one.stack else line


def _stack(one: Casualty) -> str:
    return "its stack, taken from outside (innermost last):\n" + one.stack


def of(rank: int, size: int) -> str:
    """How many there are, after a worker's number; a replacement that never took part is none of them."""
    return f" of {size}" if rank < size else ", a replacement,"


def may_go_on(casualties: Mapping[int, Casualty]) -> bool:
    """Whether the same command, run again, may get further than these workers did. What a program does before its first
    step it does again, checkpoint or not; what happened to it later, or from outside, may have been mended."""
    return all(
        one.account.again and not (one.step == 0 and one.phase in _BEFORE and one.account.kind in ("exception", "exit"))
        for one in causes(casualties)
    )


def where(one: Casualty) -> str:
    """Where a worker was, in words."""
    return "before its first step" if one.phase == "start" else f"at step {one.step} ({one.phase})"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]
