"""Flags and file become layers of settings, checked before anything is started."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from shoal.core.config import Config, Settings, flatten, resolve
from shoal.core.consistency import parse
from shoal.core.errors import ConfigError, UserError
from shoal.strategies.names import check_name, check_pair

Layer = tuple[str, Mapping[str, Any]]

COMMAND_LINE = "the command line"
# stands for what only the script says, so that flags and file can be checked without running it
_SCRIPT = ("the script", {"global_batch": 1, "epochs": 1})


def layers(file: Path | None, flags: Mapping[str, Any], assignments: Iterable[str]) -> tuple[Layer, ...]:
    """The settings of the file and of the command line; the later ones win.

    `flags` are settings with an option of their own (None: not given), `assignments` the words after --set.
    """
    stated = {name: value for name, value in flags.items() if value is not None}
    for text in assignments:
        name, value = assignment(text)
        for given in flatten({name: value}):
            if given in stated:
                raise ConfigError(f"{given} is given twice, as {stated[given]} and as {value}: give it once")
        stated[name] = value
    from_file: tuple[Layer, ...] = () if file is None else ((f"--config {file}", read_file(file)),)
    return (*from_file, (COMMAND_LINE, stated))


def check(given: tuple[Layer, ...]) -> Config:
    """Refuse unknown settings, malformed values and unknown strategies; returns what is known so far.

    What the script states is not known yet and stands at a placeholder.
    """
    config = resolve(_SCRIPT, *given)
    check_name(config.strategy)
    check_pair(config.hybrid)
    if not config.server.plugins:  # what they have is known to workers and servers only
        parse(config.server.consistency)
    return config


def assignment(text: str) -> tuple[str, Any]:
    """``clip.weights=[-1,1]`` -> the name, and the value as YAML reads it."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ConfigError(f"--set {text}: write it as --set name=value, such as --set clip.norm=1.0")
    if not value.strip():
        raise ConfigError(f"--set {text}: the value is missing (null leaves the setting to the script)")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text}: the value cannot be read ({_problem(error)})") from None
    # a directory called 2026-01-31 is no date
    return name, value if isinstance(parsed, datetime.date) else parsed


def read_file(path: Path) -> Settings:
    """The settings of a YAML file. The `config.yaml` of a run directory is one, too: it gives a new run."""
    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: there is no such file{_similar(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path}: is not valid YAML ({_problem(error)})") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise ConfigError(f"--config {path}: must hold settings as `name: value` lines, but is {_kind(data)}")
    saved = isinstance(data.get("script"), dict | None) and "script" in data
    return {name: value for name, value in data.items() if not (saved and name in ("script", "run_dir"))}


def check_script(path: Path) -> None:
    """Raise a `UserError` unless `path` is a script that can be read."""
    if path.is_dir():
        raise UserError(f"{path} is a directory, not a script: give the Python file that builds the Trainer")
    if not path.exists():
        raise UserError(f"there is no script {path}{_similar(path)}")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UserError(f"the script {path} cannot be read: {error.strerror}") from None


def _similar(path: Path) -> str:
    folder = path.parent
    names = [entry.name for entry in folder.iterdir() if entry.is_file()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f": did you mean {folder / close[0]}?" if close else ": check the path"


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", None) or "it is malformed")
    return what if mark is None or mark.line == 0 else f"line {mark.line + 1}: {what}"


def _kind(data: object) -> str:
    if isinstance(data, dict):
        return "a mapping whose names are not text"
    return "a list" if isinstance(data, list) else f"a single value ({str(data)[:40]!r})"
