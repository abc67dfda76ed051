"""How commands read their words, and what their help says beyond options: examples, the settings one needs most."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from shoal.cli.settings import COMMON, HELP, default_of

Examples = tuple[tuple[str, str], ...]

EXAMPLES = (
    ("one worker, as `python digits.py` would", "shoal train digits.py"),
    ("four workers: the same curve, sooner", "shoal train digits.py --workers 4"),
    ("kept in a directory; the same command again resumes", "shoal train digits.py -w 4 --run-dir runs/mine"),
    ("uneven machines: worker 0 takes 3/4 of each batch", "shoal train digits.py -w 2 --set weights=[3,1]"),
    ("a slow link: a quarter of the bytes, the rest comes later", "shoal train digits.py -w 4 --codec int8"),
    ("look first: configuration, shares of the batch, memory", "shoal train digits.py -w 4 --dry-run"),
    ("what follows -- belongs to the script", "shoal train resnet.py -w 2 -- --data cifar10.parquet"),
)


class _Flags:
    """Shows a switch as one that takes no value, not as ``--json <bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the command that this is mixed into
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class PlainCommand(_Flags, TyperCommand):
    """A command."""


class Commands(_Flags, TyperGroup):
    """A group of commands."""


class ScriptCommand(PlainCommand):
    """A command for a script: what stands behind ``--`` is the script's, and nothing before it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ours, theirs = args[:at], args[at + 1 :]
        rest = super().parse_args(ctx, list(ours))  # it takes them out as it reads them
        stray = ctx.params.get("script_args") or ()
        if stray and not ctx.resilient_parsing:
            ctx.fail(self._of_stray(ctx, ours, stray[0]))
        ctx.params["script_args"] = list(theirs)
        return rest

    def _of_stray(self, ctx: Any, ours: list[str], stray: str) -> str:
        before = ours[ours.index(stray) - 1] if stray in ours[1:] else ""
        switches = {name for param in self.get_params(ctx) if getattr(param, "is_flag", False) for name in param.opts}
        if before in switches:
            return f"{before} is a switch, and takes no value: leave {stray!r} out"
        return f"{stray!r} is no option: what is meant for the script stands behind --, as in SCRIPT -- {stray}"


class TaughtCommand(ScriptCommand):
    """A command whose help ends with examples and common settings."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        print_lesson()


def taught_by(examples: Examples) -> type[TyperCommand]:
    """A command whose help ends with these examples: what each is for, and the words to type."""

    class Taught(PlainCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            super().format_help(ctx, formatter)
            print_examples(examples)
            print()

    return Taught


def print_examples(examples: Examples) -> None:
    """On standard output."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(" Examples", style="bold"))
    for purpose, command in examples:
        console.print(Text.assemble("   ", (f"# {purpose}", "dim"), "\n   ", command), soft_wrap=True)


def print_lesson() -> None:
    """The lesson, on standard output."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    print_examples(EXAMPLES)
    console = Console(highlight=False)
    console.print(Text("\n Common settings, for --set name=value and --config", style="bold"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name in COMMON:
        default = default_of(name)
        table.add_row(Text(f"   {name}"), Text(HELP[name] + (f" [{default}]" if default else "")))
    console.print(table)
    console.print(Text("   all of them: shoal settings\n"))
