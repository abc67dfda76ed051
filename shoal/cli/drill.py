"""`shoal drill`: hurt a run on purpose, and see whether the laws hold."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import options
from shoal.cli.completing import assignments as complete_assignments
from shoal.cli.teaching import ScriptCommand, print_examples
from shoal.cli.train import ConfigFile, Consistency, Epochs, Replicas, ScriptArgs, Seed, Servers, Steps, Strategy
from shoal.core.config import flatten
from shoal.core.errors import ConfigError

if TYPE_CHECKING:
    from shoal.drill.run import RandomFaults
    from shoal.drill.schedule import FaultPlan

DEFAULT_WORKERS = 3
DEFAULT_FAULTS = 20
DEFAULT_KINDS = "kill,freeze,slow,preempt,coordinator"

INTERRUPTED_STATUS = 130  # 128 + SIGINT, as a shell counts

_FAULTS = "What is done to it"
_LIMITS = "What is allowed"
_HOW = "How it is carried out"
_WHAT = "What is computed"
_OUTPUT = "What is shown"

EXAMPLES = (
    ("twenty faults of all kinds, drawn by a seed", "shoal drill digits.py --random 1 --faults 20"),
    ("only kills, on four workers", "shoal drill digits.py --random 1 --kinds kill --workers 4"),
    (
        "workers, and servers that have a copy each",
        "shoal drill digits.py --strategy parameter-server --replicas 2 --random 1 --kinds kill,kill-server",
    ),
    ("faults of your own choice", "shoal drill digits.py --schedule faults.yaml"),
    ("in a pipeline: status 0 only if all laws held", "shoal drill digits.py --random 7 --json > drill.json"),
)
SCHEDULE = """\
- {kind: kill, at_step: 20, target: 1}      # SIGKILL of worker 1, once step 20 is committed
- {kind: freeze, at_step: 40}               # SIGSTOP for ever: the run must put it out
- {kind: freeze, at_step: 60, seconds: 1}   # a hiccup shorter than the lease
- {kind: slow, at_step: 70, seconds: 3}     # runs a fifth of the time
- {kind: coordinator, at_step: 80}          # SIGKILL of the coordinator
- {kind: kill-server, at_step: 90}          # SIGKILL of the process that holds server 0"""


class DrillCommand(ScriptCommand):
    """A command whose help ends with examples, the kinds of faults and a schedule."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        print_lesson()


Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python file, as for shoal train.")]
Schedule = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Faults from a YAML or JSON file.", rich_help_panel=_FAULTS),
]
Random = Annotated[
    int | None,
    typer.Option(
        "--random", metavar="SEED", help="Faults drawn by a seed, over the whole run.", rich_help_panel=_FAULTS
    ),
]
Faults = Annotated[
    int | None,
    typer.Option(metavar="N", help=f"How many, with --random (default {DEFAULT_FAULTS}).", rich_help_panel=_FAULTS),
]
Kinds = Annotated[
    str | None,
    typer.Option(metavar="A,B", help=f"Which kinds, with --random (default {DEFAULT_KINDS}).", rich_help_panel=_FAULTS),
]
Pace = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Wait before each step of the hurt run. By default as much as a short run needs to be hurt in time.",
        rich_help_panel=_FAULTS,
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(metavar="X", help="Relative difference of the parameters that is rounding.", rich_help_panel=_LIMITS),
]
LossTolerance = Annotated[
    float,
    typer.Option(
        metavar="X",
        help="For strategies that are not synchronous: more loss, as a part of what the calm run has learned.",
        rich_help_panel=_LIMITS,
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Longest time without a committed step. By default what the calm run takes, two leases and 10 s.",
        rich_help_panel=_LIMITS,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "-w", metavar="N", help=f"Worker processes (default {DEFAULT_WORKERS}).", rich_help_panel=_HOW
    ),
]
Hosts = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Spread both runs over N hosts, made of network namespaces on this machine. Needs root and iproute2.",
        rich_help_panel=_HOW,
    ),
]
RunDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A new directory: DIR/calm, DIR/hurt, DIR/drill.html.", rich_help_panel=_HOW),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, for both runs. May be repeated.",
        autocompletion=complete_assignments,
        rich_help_panel=_WHAT,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the report as JSON, and nothing else.", rich_help_panel=_OUTPUT)
]


def drill(  # noqa: PLR0913, PLR0917 - a command's arguments are its options
    script: Script,
    script_args: ScriptArgs = None,
    schedule: Schedule = None,
    random: Random = None,
    faults: Faults = None,
    kinds: Kinds = None,
    pace: Pace = None,
    tolerance: Tolerance = 5e-6,
    loss_tolerance: LossTolerance = 0.1,
    deadline: Deadline = None,
    workers: Workers = None,
    strategy: Strategy = None,
    servers: Servers = None,
    replicas: Replicas = None,
    consistency: Consistency = None,
    hosts: Hosts = 1,
    run_dir: RunDir = None,
    epochs: Epochs = None,
    steps: Steps = None,
    seed: Seed = None,
    assignments: Assignments = None,
    config_file: ConfigFile = None,
    json_output: Json = False,
) -> int:
    """Hurt a run on purpose, and report what it survived.

    Runs the script twice, undisturbed and hurt by real signals, and puts both
    side by side: faults, how soon they were noticed, pauses, lost steps,
    coverage, loss and parameters; as tables, JSON and an HTML page.

    Exit status 0: all laws held; 1: a law was broken; 3: none was, but not all
    faults could be carried out.
    """
    options.check_script(script)
    flags = {
        "workers": workers,
        "servers": servers,
        "server.replicas": replicas,
        "server.consistency": consistency,
        "strategy": strategy,
        "epochs": epochs,
        "steps": steps,
        "seed": seed,
    }
    layers = options.layers(config_file, flags, assignments or ())
    config = options.check(layers)
    stated = flatten({name: value for _, layer in layers for name, value in layer.items()})
    if "run_dir" in stated:
        raise ConfigError("run_dir: a drill has two runs; give --run-dir, and it makes a directory in it for each")

    from shoal.drill.fleet import stated_fleet
    from shoal.drill.run import Drill, conduct
    from shoal.drill.show import TerminalProgress, show
    from shoal.launch.rundir import default_path

    where = run_dir if run_dir is not None else default_path(f"drill-{script.stem}", datetime.now())
    asked = Drill(
        script=str(script),
        run_dir=where,
        workers=config.workers if "workers" in stated else DEFAULT_WORKERS,
        faults=_faults(schedule, random, faults, kinds),
        words=_words(flags, assignments or [], config_file),
        script_args=tuple(script_args or ()),
        elastic=config.elastic,
        hosts=_hosts(hosts),
        stated=frozenset(flatten(dict(layers[-1][1]))),
        tolerance=_positive("--tolerance", tolerance),
        deadline_s=None if deadline is None else _positive("--deadline", deadline),
        pace_s=_pace(pace),
        fleet=stated_fleet(config, stated),
        loss_tolerance=_positive("--loss-tolerance", loss_tolerance),
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it, too, must end both runs
    try:
        with TerminalProgress() as progress:
            report = conduct(asked, progress)
    except KeyboardInterrupt:
        print(f"shoal: drill interrupted; both runs are ended, what there is lies in {where}", file=sys.stderr)
        return INTERRUPTED_STATUS
    finally:
        signal.signal(signal.SIGTERM, before)
    if json_output:
        json.dump(report.to_json(), sys.stdout, indent=2)
        print(flush=True)
    else:
        show(report)
        print(f"\nThe page with the timeline: {where / 'drill.html'}")
    return report.exit_status


def _faults(
    schedule: Path | None, seed: int | None, count: int | None, kinds: str | None
) -> RandomFaults | tuple[FaultPlan, ...]:
    """What is asked for in the options: exactly one of the two ways."""
    from shoal.drill.kinds import parse_kinds
    from shoal.drill.run import RandomFaults
    from shoal.drill.schedule_file import read_schedule

    if schedule is None and seed is None:
        raise ConfigError("which faults? Give --random SEED to have them drawn, or --schedule FILE")
    if schedule is not None:
        for name, value in (("--random", seed), ("--faults", count), ("--kinds", kinds)):
            if value is not None:
                raise ConfigError(f"--schedule {schedule} and {name} {value} both say which faults come: give one")
        return tuple(read_schedule(schedule))
    assert seed is not None
    count = DEFAULT_FAULTS if count is None else count
    if count < 1:
        raise ConfigError(f"--faults {count}: give 1 or more")
    return RandomFaults(seed, count, parse_kinds(DEFAULT_KINDS if kinds is None else kinds))


def _words(flags: Mapping[str, Any], assignments: list[str], config_file: Path | None) -> tuple[str, ...]:
    """The options of `shoal train` that both runs get, besides workers and directory."""
    words: list[str] = []
    for name, value in flags.items():
        if value is not None and name != "workers":
            words += ["--set", f"{name}={value}"] if "." in name else [f"--{name}", str(value)]
    for text in assignments:
        if options.assignment(text)[0] != "workers":
            words += ["--set", text]
    if config_file is not None:
        words += ["--config", str(config_file)]
    return tuple(words)


def _positive(option: str, value: float) -> float:
    if not value > 0:
        raise ConfigError(f"{option} {value:g}: give a number above 0")
    return value


def _hosts(value: int) -> int:
    if not 1 <= value <= 8:
        raise ConfigError(f"--hosts {value}: give 1 to 8")
    return value


def _pace(value: float | None) -> float | None:
    if value is not None and not value >= 0:
        raise ConfigError(f"--pace {value:g}: give 0 or more")
    return value


def print_lesson() -> None:
    """Examples, kinds and a schedule, on standard output."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from shoal.drill.kinds import KINDS

    print_examples(EXAMPLES)
    console = Console(highlight=False)
    console.print(Text("\n Kinds of faults", style="bold"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name in KINDS:
        table.add_row(Text(f"   {name}"), Text(KINDS.get(name).does))
    console.print(table)
    console.print(Text("\n A schedule", style="bold"))
    for line in SCHEDULE.splitlines():
        console.print(Text(f"   {line}"), soft_wrap=True)
    console.print()
