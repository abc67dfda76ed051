"""The command `shoal`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shoal import __version__
from shoal.cli.settings import print_settings
from shoal.cli.teaching import TaughtCommand
from shoal.cli.train import train
from shoal.core.errors import ShoalError

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130  # 128 + SIGINT, as a shell counts
# the base of what a wrong command line raises; typer may bring its own click, so it is not imported by name
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="shoal",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command(name="train", cls=TaughtCommand)(train)


@app.command(name="settings")
def settings() -> None:
    """List all settings, with defaults and what they do."""
    print_settings()


def _version(asked: bool) -> None:
    if asked:
        print(f"shoal {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def shoal(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train PyTorch models on the machines people actually have: uneven, unreliable, on ordinary Ethernet.

    Start with `shoal train SCRIPT --workers 2`; `shoal train --help` has examples.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. A mistake is one message on stderr and status 2."""
    try:
        status = app(
            args=None if arguments is None else list(arguments), prog_name="shoal", standalone_mode=False
        )
    except ShoalError as error:
        return _refuse(str(error), error.exit_status)
    except (KeyboardInterrupt, typer.Abort):
        return _refuse("interrupted", INTERRUPTED_STATUS)
    except _ClickException as error:
        return _refuse(_explain(error), USAGE_STATUS)
    return status if isinstance(status, int) else 0


def _explain(error: Any) -> str:
    """What click says of a wrong command line, and where to read on."""
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "shoal"
    return f"{error.format_message().rstrip('.')}: see `{command} --help`"


def _refuse(message: str, status: int) -> int:
    print(f"shoal: error: {message}", file=sys.stderr)
    return status
