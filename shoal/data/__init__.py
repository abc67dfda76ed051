"""Where samples come from, and in which order."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data import augment as augment
    from shoal.data.columns import select as select
    from shoal.data.digits import digits as digits
    from shoal.data.draws import Draws as Draws
    from shoal.data.source import Source as Source
    from shoal.data.source import open_source as open_source
    from shoal.data.streams import stream as stream
    from shoal.data.transforms import Rowwise as Rowwise
    from shoal.data.transforms import transform as transform

# Public names and where they are. Imported when first used: reading files must not pay for PyTorch in every process.
_EXPORTS = {
    "Draws": "shoal.data.draws",
    "Rowwise": "shoal.data.transforms",
    "Source": "shoal.data.source",
    "augment": "shoal.data.augment",
    "digits": "shoal.data.digits",
    "open_source": "shoal.data.source",
    "select": "shoal.data.columns",
    "stream": "shoal.data.streams",
    "transform": "shoal.data.transforms",
}

__all__ = ["Draws", "Rowwise", "Source", "augment", "digits", "open_source", "select", "stream", "transform"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'shoal.data' has no attribute {name!r}")
    module = importlib.import_module(_EXPORTS[name])
    value = getattr(module, name, module)
    globals()[name] = value
    return value
