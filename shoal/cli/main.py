"""The command `shoal`: from words to an exit status. A mistake is one message on stderr and status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.cli.head_start import head_start, wants_workers
from shoal.core.errors import ShoalError, UserError
from shoal.core.wrapping import for_stream
from shoal.launch.descriptors import provide_descriptors

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130  # 128 + SIGINT, as a shell counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _refuse_unreadable(words)
        if wants_workers(words):
            provide_descriptors()
        with head_start(words) as nursery:
            return _run(words, nursery)
    except ShoalError as error:
        return _refuse(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _refuse("interrupted before the run began", INTERRUPTED_STATUS)


def _refuse_unreadable(words: Sequence[str]) -> None:
    """What is no UTF-8 could neither be written to a run directory nor be sent to another host."""
    here = str(Path.cwd())
    for what, word in [("the working directory", here), *(("the command line", word) for word in words)]:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(word).decode("ascii", "backslashreplace")
            raise UserError(f"{what} has a name that is no UTF-8: {shown}. Rename it (`mv`), or link to it") from None


def _run(words: list[str], nursery: object) -> int:
    # imported here, while torch is being imported elsewhere
    import typer

    from shoal.cli.app import app

    # what a wrong command line raises; typer may bring a click of its own, so it is not imported by name
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]
    try:
        status = app(args=words, prog_name="shoal", standalone_mode=False, obj=nursery)
    except usage_error as error:
        return _refuse(_explain(error), USAGE_STATUS)
    except typer.Abort:  # click's word for Ctrl-C
        raise KeyboardInterrupt from None
    return status if isinstance(status, int) else 0


def _explain(error: Any) -> str:
    """What click says of a wrong command line, and where to read on."""
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "shoal"
    return f"{error.format_message().rstrip('.')}{_of_option(error, command)} (see `{command} --help`)"


def _of_option(error: Any, command: str) -> str:
    """What to write instead of an option that is none, where a setting is meant by it: ``--batch-size``."""
    from shoal.core.aliases import said_of, setting_meant_by
    from shoal.core.config import known_settings

    option = str(getattr(error, "option_name", None) or "")
    if not option.startswith("--") or command not in ("shoal train", "shoal drill"):
        return ""
    word, known = option.removeprefix("--").replace("-", "_"), known_settings()
    meant = word if word in known else setting_meant_by(word, known)
    if meant is not None:
        return f": write --set {meant}=..."
    said = said_of(word)
    return f": {said}" if said is not None else ""


def _refuse(message: str, status: int) -> int:
    print(for_stream(f"shoal: error: {message}", sys.stderr), file=sys.stderr)
    return status
