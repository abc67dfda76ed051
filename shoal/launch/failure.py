"""What went wrong in a run: a worker's own account of it, which accounts are the cause, and how they are
shown."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoal.core.errors import CollectiveTimeout, PeerLost, ShoalError
from shoal.launch.frames import user_traceback

Kind = Literal["user", "exception", "exit", "signal", "peer"]
_MESSAGE_LIMIT = 100_000


@dataclass(frozen=True)
class Account:
    """Why one worker ended. `message` is for the user to read, `cause` is one line for the log.

    Kinds: ``user`` (a mistake, shown without frames), ``exception`` (with the user's frames), ``exit`` (the
    process left with a status), ``signal`` (it was killed), ``peer`` (it ended only because another did).
    """

    kind: Kind
    message: str
    cause: str
    status: int = 1

    def to_message(self) -> dict[str, Any]:
        return {"type": "failed", **vars(self)}

    @staticmethod
    def from_message(message: Mapping[str, Any]) -> Account:
        kind, status = message.get("kind", "exception"), int(message.get("status") or 1)
        text = str(message.get("message", ""))
        return Account(kind, text, str(message.get("cause") or _last_line(text)), status)


def account_of(error: BaseException) -> Account | None:
    """A worker's account of what its script raised; None if that is no failure (``sys.exit()``)."""
    if isinstance(error, SystemExit):
        return _account_of_exit(error)
    text = str(error)[:_MESSAGE_LIMIT]
    if isinstance(error, PeerLost | CollectiveTimeout):
        return Account("peer", text, text)
    if isinstance(error, ShoalError):
        kind: Kind = "user" if error.exit_status == 2 else "exception"
        return Account(kind, text, _first_line(text), error.exit_status)
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


def account_of_end(code: int) -> Account:
    """The account of a process that ended without giving one: `code` is its status, or minus the signal."""
    if code >= 0:
        text = f"the process ended with status {code} in the middle of the run (by os._exit, perhaps)"
        return Account("exit", text, f"ended with status {code}")
    number = -code
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
    return Account("signal", f"{cause}. {hint}".removesuffix(" "), cause)


@dataclass(frozen=True)
class Casualty:
    """An account, and where its worker was."""

    rank: int
    account: Account
    step: int
    phase: str
    detected_s: float = 0.0


def causes(casualties: Mapping[int, Casualty]) -> list[Casualty]:
    """Those that did not merely follow another's end, in rank order; all of them if there are no others."""
    ordered = [casualties[rank] for rank in sorted(casualties)]
    return [one for one in ordered if one.account.kind != "peer"] or ordered


def render(casualties: Mapping[int, Casualty], workers: int, host: str, output: Mapping[int, str]) -> str:
    """One readable block for the terminal. What several workers say in the same words is said once.
    `output` adds a worker's last words, or where they are found, to an account that does not explain
    itself."""
    same: dict[tuple[str, str], list[Casualty]] = {}
    for one in causes(casualties):
        same.setdefault((one.account.kind, one.account.message), []).append(one)
    return "\n\n".join(_render(group, workers, host, output) for group in same.values())


def _render(group: list[Casualty], workers: int, host: str, output: Mapping[int, str]) -> str:
    first = group[0]
    if first.account.kind == "user":
        return f"shoal: error: {first.account.message}"
    others = f" (and {len(group) - 1} other{'s' if len(group) > 2 else ''})" if len(group) > 1 else ""
    place = f" on {host}" if first.account.kind == "signal" else ""
    heading = f"shoal: worker {first.rank}{others} of {workers}{place} failed {_where(first)}"
    words = output.get(first.rank, "") if first.account.kind in ("signal", "exit") else ""
    return f"{heading}\n\n{first.account.message}" + (f"\n\n{words}" if words else "")


def _where(one: Casualty) -> str:
    return "before its first step" if one.phase == "start" else f"at step {one.step} ({one.phase})"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]
