"""Shoal trains PyTorch models on the machines people actually have.

One ordinary script runs unchanged on any number of workers: ``python script.py`` trains in one process,
``shoal train script.py --workers 4`` distributes it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import callbacks as callbacks
    from shoal import data as data
    from shoal import metrics as metrics
    from shoal import schedules as schedules
    from shoal.core.config import Clip as Clip
    from shoal.core.consistency import ASP as ASP
    from shoal.core.consistency import BSP as BSP
    from shoal.core.consistency import SSP as SSP
    from shoal.core.errors import ShoalError as ShoalError
    from shoal.core.errors import UserError as UserError
    from shoal.store.kvstore import KVStore as KVStore
    from shoal.train.prepare import prepare as prepare
    from shoal.train.result import Result as Result
    from shoal.train.trainer import Trainer as Trainer

__version__ = "0.1.0"

# Public names and where they are. Imported when first used: the command line must not pay for PyTorch.
_EXPORTS = {
    "ASP": "shoal.core.consistency:ASP",
    "BSP": "shoal.core.consistency:BSP",
    "Clip": "shoal.core.config:Clip",
    "KVStore": "shoal.store.kvstore:KVStore",
    "Result": "shoal.train.result:Result",
    "SSP": "shoal.core.consistency:SSP",
    "ShoalError": "shoal.core.errors:ShoalError",
    "Trainer": "shoal.train.trainer:Trainer",
    "UserError": "shoal.core.errors:UserError",
    "callbacks": "shoal.callbacks",
    "data": "shoal.data",
    "metrics": "shoal.metrics",
    "prepare": "shoal.train.prepare:prepare",
    "schedules": "shoal.schedules",
}

__all__ = [*sorted(_EXPORTS), "__version__"]  # noqa: PLE0604 - all are strings


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    module, _, attribute = _EXPORTS[name].partition(":")
    value = importlib.import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


# `python -m shoal` and the `shoal` command have no need of PyTorch; whoever else imports this package trains.
if sys.argv[:1] != ["-m"] and not sys.argv[0].endswith(("/shoal", "\\shoal.exe")):
    from shoal.launch.plain import settle_plain_process

    settle_plain_process()
