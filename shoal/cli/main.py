"""The command `shoal`: from words to an exit status. A mistake is one message on stderr and status 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from shoal.cli.head_start import head_start
from shoal.core.errors import ShoalError

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130  # 128 + SIGINT, as a shell counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with head_start(words) as nursery:
            return _run(words, nursery)
    except ShoalError as error:
        return _refuse(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _refuse("interrupted before the run began", INTERRUPTED_STATUS)


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
    return f"{error.format_message().rstrip('.')} (see `{command} --help`)"


def _refuse(message: str, status: int) -> int:
    print(f"shoal: error: {message}", file=sys.stderr)
    return status
