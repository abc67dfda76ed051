"""Where samples come from, and in which order; and how raw files become data sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.following import follow as follow
    from shoal.data.handwritten import digits as digits
    from shoal.data.opening import open as open  # noqa: A004 - shoal.data.open reads well
    from shoal.data.preparing.job import Job as Job
    from shoal.data.preparing.prepare import prepare as prepare
    from shoal.data.registry import register as register
    from shoal.data.source import Source as Source
    from shoal.data.source import open_source as open_source

# Public names and where they are. Imported when first used: reading files must not pay for PyTorch in every process.
_EXPORTS = {
    "Job": "shoal.data.preparing.job",
    "Source": "shoal.data.source",
    "digits": "shoal.data.handwritten",
    "follow": "shoal.data.following",
    "open": "shoal.data.opening",
    "open_source": "shoal.data.source",
    "prepare": "shoal.data.preparing.prepare",
    "register": "shoal.data.registry",
}

__all__ = ["Job", "Source", "digits", "follow", "open", "open_source", "prepare", "register"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'shoal.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value
