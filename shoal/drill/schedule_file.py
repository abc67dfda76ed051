"""A schedule of faults from a YAML or JSON file; what is wrong with it is said by line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from shoal.core.errors import ConfigError, nearest
from shoal.drill.kinds import KINDS
from shoal.drill.schedule import FaultPlan

FIELDS = ("kind", "at_step", "target", "seconds")
EXAMPLE = "- {kind: kill, at_step: 20, target: 1}"


def read_schedule(path: Path) -> list[FaultPlan]:
    """The plans of a file, ordered by step. Raises ConfigError naming file and line."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise ConfigError(f"--schedule {path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--schedule {path}: cannot be read ({error})") from None
    return parse_schedule(text, f"--schedule {path}")


def parse_schedule(text: str, name: str = "the schedule") -> list[FaultPlan]:
    """The plans in `text`: a list of faults, or a mapping with such a list under ``faults``. Ordered by step.

    JSON is read as the YAML it is. Raises ConfigError that begins with `name` and the line.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{name}{where}: {getattr(error, 'problem', None) or 'it is no YAML'}") from None
    if isinstance(node, yaml.MappingNode):
        inner = [value for key, value in node.value if key.value == "faults"]
        if len(inner) != 1 or len(node.value) != 1:
            raise _wrong(name, node, f"a schedule is a list of faults, such as {EXAMPLE}")
        node = inner[0]
    if node is None or not isinstance(node, yaml.SequenceNode) or not node.value:
        raise _wrong(name, node, f"there are no faults; write a list, such as {EXAMPLE}")
    plans = [_plan(name, item) for item in node.value]
    return sorted(plans, key=lambda plan: plan.at_step)


def _plan(name: str, item: yaml.Node) -> FaultPlan:
    if not isinstance(item, yaml.MappingNode):
        raise _wrong(name, item, f"a fault is written as {EXAMPLE}")
    given: dict[str, Any] = {}
    for key, at, value in _fields(item):
        if key not in FIELDS:
            raise _wrong(name, at, f"unknown field {key!r}: {nearest(key, FIELDS)}")
        if key in given:
            raise _wrong(name, at, f"{key} is given twice")
        _check(name, at, key, value)
        given[key] = value
    for key in ("kind", "at_step"):
        if key not in given:
            raise _wrong(name, item, f"{key} is missing; a fault is written as {EXAMPLE}")
    aim = KINDS.get(given["kind"]).aims_at
    if aim == "host" and "target" not in given:
        given["target"] = 1  # host 0 is where the run was started
    return FaultPlan(**given)


def _fields(item: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, Any]]:
    loader = yaml.SafeLoader("")
    for key, value in item.value:
        yield str(key.value), key, loader.construct_object(value, deep=True)


def _check(name: str, at: yaml.Node, key: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if key == "kind" and (not isinstance(value, str) or value not in KINDS):
        raise _wrong(name, at, f"unknown kind of fault {value!r}: {nearest(str(value), KINDS)}")
    if key == "at_step" and not (isinstance(value, int) and number and value >= 1):
        raise _wrong(name, at, f"at_step is {value!r}: give the number of a step, 1 or more")
    if key == "target" and not (isinstance(value, int) and number and value >= 0):
        raise _wrong(name, at, f"target is {value!r}: give the rank of a worker or the number of a server, 0 or more")
    if key == "seconds" and not (number and value > 0):
        raise _wrong(name, at, f"seconds is {value!r}: give a number above 0")


def _wrong(name: str, node: yaml.Node | None, what: str) -> ConfigError:
    where = f", line {node.start_mark.line + 1}" if node is not None else ""
    return ConfigError(f"{name}{where}: {what}")
