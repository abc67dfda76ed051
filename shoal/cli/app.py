"""The commands of `shoal`."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal import __version__
from shoal.cli import data, doctor, join, kvstore, prepare, scale
from shoal.cli.completing import setting_names
from shoal.cli.drill import DrillCommand, drill
from shoal.cli.settings import EXAMPLES as SETTINGS_EXAMPLES
from shoal.cli.settings import print_settings
from shoal.cli.teaching import Commands, TaughtCommand, taught_by
from shoal.cli.train import train

app = typer.Typer(
    name="shoal",
    cls=Commands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command(name="train", cls=TaughtCommand)(train)
app.command(name="drill", cls=DrillCommand)(drill)
app.command(name="join", cls=taught_by(join.EXAMPLES))(join.join)
app.command(name="scale", cls=taught_by(scale.EXAMPLES))(scale.scale)
app.command(name="kvstore", cls=taught_by(kvstore.EXAMPLES))(kvstore.kvstore)
app.command(name="prepare", cls=taught_by(prepare.EXAMPLES))(prepare.prepare)
app.command(name="doctor", cls=taught_by(doctor.EXAMPLES))(doctor.doctor)

data_app = typer.Typer(cls=Commands, help="Look at prepared data sets.", no_args_is_help=True)
data_app.command(name="inspect", cls=taught_by(data.EXAMPLES))(data.inspect)
app.add_typer(data_app, name="data")


Word = Annotated[
    str | None,
    typer.Argument(
        metavar="WORD",
        help="Only those that have it in their name or in what they do; other frameworks' names are understood.",
        autocompletion=setting_names,
        show_default=False,
    ),
]


@app.command(name="settings", cls=taught_by(SETTINGS_EXAMPLES))
def settings(word: Word = None) -> None:
    """List all settings, or those that WORD is about, with defaults and what they do."""
    print_settings(word)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"shoal {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
]


@app.callback(invoke_without_command=True)
def shoal(context: typer.Context, version: Version = False) -> None:
    """Train PyTorch models on the machines people actually have: uneven, unreliable, on ordinary Ethernet.

    Start with `shoal train SCRIPT --workers 2`; `shoal train --help` has examples.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
