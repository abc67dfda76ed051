"""`shoal train`: a script, and how it is to be run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import options
from shoal.cli.completing import assignments as complete_assignments
from shoal.cli.completing import values_of
from shoal.comm.codecs.names import CODECS
from shoal.core.errors import ConfigError
from shoal.strategies.names import AUTO, STRATEGIES

_WHAT = "What is computed"
_HOW = "How it is carried out"
_SURVIVES = "What it survives"
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
    typer.Option(
        metavar="N", help="Parameter servers (default 1, for strategies that use them).", rich_help_panel=_HOW
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Copies of each server (default 1); with 2, losing one loses nothing.",
        rich_help_panel=_SURVIVES,
    ),
]
Consistency = Annotated[
    str | None,
    typer.Option(
        metavar="bsp|ssp:N|asp",
        help="With servers: how far workers may drift apart; N tasks ahead of the slowest, or any number.",
        autocompletion=values_of("server.consistency"),
        rich_help_panel=_HOW,
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"How the work is distributed: {', '.join([AUTO, *STRATEGIES])}.",
        autocompletion=values_of("strategy"),
        rich_help_panel=_HOW,
    ),
]
Codec = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"How gradients are packed, for slow links: {', '.join(CODECS)}, or auto (measures, then picks). "
        "topk:0.05 and powersgd:2 say how much; what is left out is sent later.",
        autocompletion=values_of("comm.codec"),
        rich_help_panel=_HOW,
    ),
]
Encrypt = Annotated[
    str | None,
    typer.Option(
        metavar="auto|on|off",
        help="Between hosts, auto encrypts all but the ports that gloo opens, which it cannot; on refuses a run that "
        "would need those; off leaves traffic with servers plain, though authenticated.",
        autocompletion=values_of("comm.encrypt"),
        rich_help_panel=_HOW,
    ),
]
Once = Annotated[
    str | None,
    typer.Option(
        metavar="on|off",
        help="off accepts data from a stream that is not the same each time it is read; nobody can say then that every "
        "sample was used exactly once.",
        autocompletion=values_of("loader.once"),
        rich_help_panel=_HOW,
    ),
]
MinWorkers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Fewer than so many do not train (default 1).", rich_help_panel=_SURVIVES),
]
MaxWorkers = Annotated[
    int | None,
    typer.Option(metavar="N", help="More than so many never take part.", rich_help_panel=_SURVIVES),
]
MaxRestarts = Annotated[
    int | None,
    typer.Option(metavar="N", help="Workers to replace after a fault (default 10).", rich_help_panel=_SURVIVES),
]
OnError = Annotated[
    str | None,
    typer.Option(
        metavar="stop|continue",
        help="An exception ends the run, or that worker only.",
        autocompletion=values_of("elastic.on_error"),
        rich_help_panel=_SURVIVES,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="Let other hosts join, on this address of mine: auto, ADDRESS or ADDRESS:PORT.",
        rich_help_panel=_HOW,
    ),
]
Evaluator = Annotated[
    bool,
    typer.Option(
        "--evaluator",
        help="Evaluate in a process of its own: it follows the checkpoints, and exports the best.",
        rich_help_panel=_HOW,
    ),
]
RunDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the run is kept; the same one resumes it.", rich_help_panel=_HOW),
]
Mirror = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Copy checkpoints there, too: a path, s3://… or hdfs://…; the run can go on from there alone.",
        rich_help_panel=_SURVIVES,
    ),
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
        autocompletion=complete_assignments,
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
    consistency: Consistency = None,
    codec: Codec = None,
    run_dir: RunDir = None,
    mirror: Mirror = None,
    listen: Listen = None,
    encrypt: Encrypt = None,
    once: Once = None,
    evaluator: Evaluator = False,
    epochs: Epochs = None,
    steps: Steps = None,
    seed: Seed = None,
    min_workers: MinWorkers = None,
    max_workers: MaxWorkers = None,
    max_restarts: MaxRestarts = None,
    replicas: Replicas = None,
    on_error: OnError = None,
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
        "server.replicas": replicas,
        "server.consistency": consistency,
        "strategy": strategy,
        "comm.codec": codec,
        "comm.encrypt": encrypt,
        "loader.once": once,
        "run_dir": None if run_dir is None else str(run_dir),
        "checkpoint.mirror": mirror,
        "epochs": epochs,
        "steps": steps,
        "seed": seed,
        "elastic.min_workers": min_workers,
        "elastic.max_workers": max_workers,
        "elastic.max_restarts": max_restarts,
        "elastic.on_error": on_error,
        "evaluator.enabled": evaluator or None,
    }
    layers = options.layers(config_file, flags, assignments or ())
    config = options.check(layers)

    from shoal.comm.select import refuse_unencrypted
    from shoal.launch.interfaces import listen_endpoint
    from shoal.launch.job import Job
    from shoal.launch.launcher import Launcher
    from shoal.launch.rundir import new_path

    refuse_unencrypted(config.comm.encrypt, listen is not None)
    if listen is not None and dry_run:
        raise ConfigError("--listen: a dry run has no part for other hosts: leave one of the two out")
    if listen is not None:
        given = dict(layers[-1][1])
        if config.run_dir is None:  # known before the script runs: the key to the run lies there
            given["run_dir"] = str(new_path(str(script)))
        if config.strategy == "auto":  # more may come, however few there are at first
            given["strategy"] = "allreduce"
        layers = (*layers[:-1], (layers[-1][0], given))
    job = Job(
        workers=config.workers,
        script=str(script),
        script_args=tuple(script_args or ()),
        layers=layers,
        mode="dry-run" if dry_run else "train",
        json_output=json_output,
        threads=config.threads,
        elastic=config.elastic,
        listen=None if listen is None else listen_endpoint(listen),
    )
    outcome = Launcher(job, nursery=context.obj).run()
    if json_output and outcome.summary is not None:
        json.dump(outcome.summary, sys.stdout, indent=2)
        print(flush=True)
    return outcome.status
