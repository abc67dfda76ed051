"""`shoal train`: a script, and how it is to be run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import options

_WHAT = "What is computed"
_HOW = "How it is carried out"
_OUTPUT = "What is shown"

Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python file that builds a Trainer.")]
ScriptArgs = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGUMENTS", help="The script's own, after --.", show_default=False),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", metavar="N", help="Worker processes (default 1).", rich_help_panel=_HOW),
]
Servers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Parameter servers, for strategies that use them.", rich_help_panel=_HOW),
]
Strategy = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="How the work is distributed: auto, single, allreduce.", rich_help_panel=_HOW),
]
RunDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the run is kept; the same one resumes it.", rich_help_panel=_HOW),
]
Epochs = Annotated[int | None, typer.Option(metavar="N", help="Length in passes over the data.", rich_help_panel=_WHAT)]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Length in steps.", rich_help_panel=_WHAT)]
Seed = Annotated[
    int | None,
    typer.Option(metavar="S", help="Decides everything that is drawn at random.", rich_help_panel=_WHAT),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, such as clip.norm=1.0 or checkpoint.every='50 steps'. May be repeated.",
        rich_help_panel=_WHAT,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings from a YAML file.", rich_help_panel=_WHAT),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would be done, without training.", rich_help_panel=_OUTPUT),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the summary as JSON, and nothing else.", rich_help_panel=_OUTPUT),
]


def train(  # noqa: PLR0913, PLR0917 - a command's arguments are its options
    context: typer.Context,
    script: Script,
    script_args: ScriptArgs = None,
    workers: Workers = None,
    servers: Servers = None,
    strategy: Strategy = None,
    run_dir: RunDir = None,
    epochs: Epochs = None,
    steps: Steps = None,
    seed: Seed = None,
    assignments: Assignments = None,
    config_file: ConfigFile = None,
    dry_run: DryRun = False,
    json_output: Json = False,
) -> int:
    """Train a script on N workers.

    The script stays an ordinary program: it builds a shoal.Trainer and calls
    fit(). Options win over the file of --config, the file over the script.
    """
    options.check_script(script)
    flags = {
        "workers": workers,
        "servers": servers,
        "strategy": strategy,
        "run_dir": None if run_dir is None else str(run_dir),
        "epochs": epochs,
        "steps": steps,
        "seed": seed,
    }
    layers = options.layers(config_file, flags, assignments or ())
    config = options.check(layers)

    from shoal.launch.job import Job
    from shoal.launch.launcher import Launcher

    job = Job(
        workers=config.workers,
        script=str(script),
        script_args=tuple(script_args or ()),
        layers=layers,
        mode="dry-run" if dry_run else "train",
        json_output=json_output,
        threads=config.threads,
    )
    outcome = Launcher(job, nursery=context.obj).run()
    if json_output and outcome.summary is not None:
        json.dump(outcome.summary, sys.stdout, indent=2)
        print(flush=True)
    return outcome.status
