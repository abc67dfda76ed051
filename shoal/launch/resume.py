"""The words by which a run goes on: what was asked for, with the directory in which it is kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from shoal.core.config import flatten
from shoal.launch.session import Layer, Session

# settings with an option of their own
_OPTIONS = {
    **{name: f"--{name}" for name in ("strategy", "servers", "epochs", "steps", "seed")},
    "checkpoint.mirror": "--mirror",
}


def resume_command(session: Session, workers: int, run_dir: Path) -> str:
    """What to type so that the run in `run_dir` goes on: a command, or a call where there is no script."""
    if session.script is None:
        several = f"workers={workers}, " if workers > 1 else ""
        return f"trainer.fit({several}run_dir={str(run_dir)!r})"
    script = Path(session.script)
    here = Path.cwd()
    words = ["shoal", "train", str(script.relative_to(here) if script.is_relative_to(here) else script)]
    if workers > 1:
        words += ["--workers", str(workers)]
    words += [*_stated(session.layers), "--run-dir", str(run_dir)]
    if sys.argv[1:]:
        words += ["--", *sys.argv[1:]]
    return shlex.join(words)


def _stated(layers: Iterable[Layer]) -> list[str]:
    """The file and the flags of this run: without them it would be another one, and be refused."""
    words: list[str] = []
    for where, settings in layers:
        if where.startswith("--config "):
            words += ["--config", where.removeprefix("--config ")]
            continue
        for name, value in flatten(settings).items():
            if value is None or name in ("workers", "run_dir"):
                continue
            if name == "evaluator.enabled" and value is True:
                words.append("--evaluator")
                continue
            words += [_OPTIONS[name], str(value)] if name in _OPTIONS else ["--set", f"{name}={_plain(value)}"]
    return words


def _plain(value: Any) -> str:
    """`value` as one writes it after --set."""
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
