"""What a run tells its user, as text: figures, the block before it, the block after it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.core.events import Mirrored, RunEnded
from shoal.train.callbacks.base import RunInfo


class Command(str):
    """Words to copy: they stay on one line, however long it is."""

    __slots__ = ()


Rows = list[tuple[str, str]]
FINISHED = ("completed", "stopped")  # the statuses after which nothing is left to do


def figure(value: float) -> str:
    """A measured value: four digits that count."""
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def rate(samples_per_s: float) -> str:
    return f"{samples_per_s:,.0f} samples/s" if samples_per_s >= 100 else f"{samples_per_s:.3g} samples/s"


def duration(seconds: float) -> str:
    """``4.2 s``, ``48 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def of(count: int, total: int) -> str:
    """``24/48``, or the count alone where the length of the run is open."""
    return f"{count:,}/{total:,}" if total else f"{count:,}"


def crew(workers: int, hosts: int) -> str:
    """``4 workers on 2 hosts``."""
    return f"{workers} worker{'s' if workers != 1 else ''} on {hosts} host{'s' if hosts != 1 else ''}"


def values(measured: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {figure(value)}" for name, value in measured.items())


def by_interest(names: Iterable[str]) -> list[str]:
    """What people look for first stands first."""
    return sorted(names, key=lambda name: ("accuracy" not in name, not name.startswith("test_")))


def shown_path(path: Path) -> str:
    """Relative to the working directory where it lies below it: what one can copy."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def header(run: RunInfo) -> Rows:
    """What a user should know before the first step."""
    return list(run.header) or [
        ("strategy", run.strategy),
        ("workers", str(run.workers)),
        ("backend", run.backend),
        ("global batch", str(run.config.global_batch)),
        ("run directory", shown_path(run.run_dir)),
    ]


def result(event: RunEnded, run: RunInfo, elapsed_s: float, saved_step: int | None) -> tuple[str, Rows]:
    """How the run ended: a title, and what came out of it."""
    at = f"at step {event.cursor.step:,}" + (f" of {run.total_steps:,}" if run.total_steps else "")
    title = {
        "completed": f"completed in {duration(elapsed_s)}",
        "stopped": f"stopped {at} after {duration(elapsed_s)}",
    }.get(event.status, f"{event.status} {at}")
    rows: Rows = []
    if event.status in FINISHED:  # why a run failed is shown by whoever started it, with its place
        rows += [("reason", event.reason)] if event.reason else []
        final = {name: value for name, value in (event.summary.get("final") or {}).items() if value is not None}
        rows += [(name, figure(final[name])) for name in by_interest(final)]
    if event.summary.get("samples_per_s"):
        rows.append(("speed", rate(event.summary["samples_per_s"])))
    if event.status not in FINISHED:
        rows.append(("checkpoint", "none yet" if saved_step is None else f"step {saved_step:,}"))
    rows.append(("run directory", shown_path(run.run_dir)))
    if event.status not in FINISHED and event.again and run.resume_command:
        rows.append(("to go on", Command(run.resume_command)))
    return title, rows


def mirror(event: Mirrored) -> tuple[str, str]:
    """What is to be told of a copy, and in which style."""
    if event.status == "copying":
        return f"copying {event.checkpoint} to {event.place}: {event.part:.0%}", "dim"
    if event.status == "resumed":
        return f"from {event.checkpoint} of the mirror {event.place}: {event.reason}", "dim"
    if event.status == "older":
        return f"not from {event.checkpoint} of the mirror {event.place}: {event.reason}", "dim"
    what = f"{event.checkpoint} is not in the mirror {event.place}: {event.reason}"
    then = {
        "away": ". It is tried again; training goes on",
        "left": ". Run the same command again to copy it",
    }.get(event.status, "")
    return f"warning: {what}{then}", "yellow"


def next_steps(event: RunEnded, run: RunInfo, cores: int | None = None) -> Rows:
    """What to try after a run that is finished: purposes and the commands for them."""
    command = run.resume_command
    if not command.startswith("shoal train "):
        return [("on several workers", Command("shoal train SCRIPT --workers 2"))]
    cores = cores or len(os.sched_getaffinity(0))
    rows: Rows = []
    anew = with_option(with_option(command, "--run-dir", None), "--mirror", None)
    if run.workers < cores:
        rows.append(("on more workers", with_option(anew, "--workers", str(min(cores, run.workers * 2)))))
    if event.status == "completed" and run.total_steps:
        option, done = ("--epochs", event.cursor.epoch) if run.config.epochs else ("--steps", event.cursor.step)
        rows.append(("train on", with_option(command, option, str(2 * max(1, done)))))
    rows.append(("see the plan", with_option(anew, "--dry-run", "")))
    return rows


def with_option(command: str, option: str, value: str | None) -> Command:
    """Put `option` into a `shoal train` command, replacing it where it stands; None takes it out.

    An empty value gives a switch. What follows ``--`` belongs to the script and is left alone.
    """
    words = shlex.split(command)
    end = words.index("--") if "--" in words else len(words)
    ours, scripts = words[:end], words[end:]
    short = {"--workers": "-w"}.get(option)
    kept: list[str] = []
    skip = False
    for word in ours:
        if skip:
            skip = False
        elif word in (option, short):
            skip = value != ""
        elif not word.startswith(f"{option}="):
            kept.append(word)
    if value is not None:
        kept += [option, value] if value else [option]
    return Command(shlex.join(kept + scripts))
