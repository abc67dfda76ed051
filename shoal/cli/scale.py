"""`shoal scale`: a run that is under way goes on with more workers, or with fewer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    ("four workers from the next step on, wherever there is room", "shoal scale runs/mine --workers 4"),
    ("one worker: the others finish their step and go", "shoal scale runs/mine -w 1"),
)
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Where the run is kept.")]
Workers = Annotated[int, typer.Option("--workers", "-w", metavar="N", help="Workers in all, over all hosts.")]


def scale(run_dir: RunDirectory, workers: Workers) -> int:
    """Change the number of workers of a run that is under way.

    Workers come and go at the end of a step, and the result stays the same: the
    number of workers never changes the mathematics. Exits with 1 if the run did
    not have that number after two minutes.
    """
    from shoal.launch.scaling import scale as ask

    outcome = ask(run_dir, workers)
    members = ", ".join(str(member) for member in outcome.after.members) or "nobody yet"
    if outcome.after.size != workers:
        awaited = f", and waits for {', '.join(outcome.awaited)}" if outcome.awaited else ""
        print(f"shoal: asked for {workers} workers, but the run has {outcome.after.size} by now ({members}){awaited}")
        return 1
    if outcome.before.size == workers:
        print(f"shoal: the run has {_workers(workers)} already: {members}")
    else:
        print(f"shoal: {_workers(outcome.before.size)} before, {workers} now: {members} (view {outcome.after.number})")
    return 0


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"
