"""From a name to a codec. Importing this module does not import torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.core.errors import ConfigError, nearest
from shoal.core.registry import Registry

if TYPE_CHECKING:
    from shoal.comm.codecs.base import Codec

CodecFactory = Callable[[str | None], "Codec"]  # is given what stands behind the colon, None where there is none

CODECS: Registry[CodecFactory] = Registry("codec")
"""Add your own: ``@CODECS.add("mine")`` before a function from the parameter to a `Codec`."""

AUTO = "auto"  # not a codec: whoever can measure chooses one


def codec_named(spec: str) -> Codec:
    """A new codec, such as ``bf16``, ``topk:0.05`` or ``powersgd:4``. Raises `ConfigError` for an unknown name or a
    parameter that the codec cannot take."""
    name, colon, parameter = spec.partition(":")
    if name not in CODECS:
        raise ConfigError(f"comm.codec={spec!r} is not a codec: {nearest(name, [*CODECS, AUTO])}")
    return CODECS.get(name)(parameter if colon else None)


def check_codec(spec: str) -> None:
    """Raise `ConfigError` where `spec` is neither ``auto`` nor a codec."""
    if spec != AUTO:
        codec_named(spec)


def number(codec: str, parameter: str, kind: Callable[[str], float], low: float, high: float, what: str) -> float:
    """The parameter of a codec as a number from `low` to `high`; `what` says in words what it is."""
    try:
        value = kind(parameter)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ConfigError(
            f"comm.codec={codec}:{parameter} has a wrong parameter: it is {what}, from {low:g} to {high:g}"
        )
    return value


def refuse_parameter(codec: str, parameter: str | None) -> None:
    """Raise `ConfigError` where a parameter was given to a codec that has none."""
    if parameter is not None:
        raise ConfigError(f"comm.codec={codec}:{parameter}: {codec} takes no parameter, write comm.codec={codec}")


def _late(place: str) -> CodecFactory:
    """The factory at ``module:function``, which is imported when it is asked for: torch is slow to load."""
    module, _, function = place.partition(":")

    def make(parameter: str | None) -> Codec:
        factory: CodecFactory = getattr(importlib.import_module(f"shoal.comm.codecs.{module}"), function)
        return factory(parameter)

    return make


for _name, _place in {
    "none": "plain:make_none",
    "bf16": "half:make_bf16",
    "fp16": "half:make_fp16",
    "int8": "int8:make_int8",
    "topk": "topk:make_topk",
    "powersgd": "powersgd:make_powersgd",
}.items():
    CODECS.add(_name)(_late(_place))
