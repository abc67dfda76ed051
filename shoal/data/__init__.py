"""Where samples come from, and in which order; and how raw files become data sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data import augment as augment
    from shoal.data.columns import select as select
    from shoal.data.draws import Draws as Draws
    from shoal.data.following import follow as follow
    from shoal.data.handwritten import digits as digits
    from shoal.data.opening import open as open  # noqa: A004 - shoal.data.open reads well
    from shoal.data.preparing.job import Job as Job
    from shoal.data.preparing.prepare import prepare as prepare
    from shoal.data.registry import register as register
    from shoal.data.shards.images import Resize as Resize
    from shoal.data.source import Source as Source
    from shoal.data.source import open_source as open_source
    from shoal.data.streams import stream as stream
    from shoal.data.transforms import Rowwise as Rowwise
    from shoal.data.transforms import transform as transform

# Public names and where they are. Imported when first used: reading files must not pay for PyTorch in every process.
_EXPORTS = {
    "Draws": "shoal.data.draws",
    "Job": "shoal.data.preparing.job",
    "Resize": "shoal.data.shards.images",
    "Rowwise": "shoal.data.transforms",
    "Source": "shoal.data.source",
    "augment": "shoal.data.augment",
    "digits": "shoal.data.handwritten",
    "follow": "shoal.data.following",
    "open": "shoal.data.opening",
    "open_source": "shoal.data.source",
    "prepare": "shoal.data.preparing.prepare",
    "register": "shoal.data.registry",
    "select": "shoal.data.columns",
    "stream": "shoal.data.streams",
    "transform": "shoal.data.transforms",
}

__all__ = [
    "Draws",
    "Job",
    "Resize",
    "Rowwise",
    "Source",
    "augment",
    "digits",
    "follow",
    "open",
    "open_source",
    "prepare",
    "register",
    "select",
    "stream",
    "transform",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'shoal.data' has no attribute {name!r}")
    module = importlib.import_module(_EXPORTS[name])
    value = getattr(module, name, module)
    globals()[name] = value
    return value
