"""How a built-in job is named: ``name:option=value,value:option=value``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.core.errors import ConfigError, nearest
from shoal.core.registry import Registry
from shoal.data.preparing.step import Step

builtin_jobs: Registry[type[BuiltinStep]] = Registry("job")


class BuiltinStep(Step):
    """`options` says what a job understands, and by what each is explained in errors. Options are texts."""

    options: Mapping[str, str]

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        for name in given:
            if name not in self.options:
                raise ConfigError(f"job {self.name}: unknown option {name!r}: {nearest(name, self.options)}")

    def texts(self, name: str) -> tuple[str, ...]:
        """An option that is a list."""
        return tuple(part for part in self._given.get(name, "").split(",") if part)

    def number(self, name: str, default: float) -> float:
        """An option that is a number."""
        text = self._given.get(name)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise ConfigError(f"job {self.name}: {name}={text}: give a number ({self.options[name]})") from None

    def required(self, name: str) -> tuple[str, ...]:
        found = self.texts(name)
        if not found:
            raise ConfigError(f"job {self.name} needs {name}: {self.options[name]}, e.g. --job {self.name}:{name}=…")
        return found

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, **self._given}


def make_builtin(words: str) -> BuiltinStep:
    """``dedupe:by=id``, ``normalise:columns=a,b``. Raises `ConfigError`."""
    name, *parts = words.split(":")
    given = {}
    for part in parts:
        option, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"--job {words}: give options as name=value, not {part!r}")
        given[option] = value
    return builtin_jobs.get(name)(given)
