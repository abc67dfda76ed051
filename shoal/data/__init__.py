"""Where samples come from, and in which order."""

from shoal.data.digits import digits
from shoal.data.opening import open  # noqa: A004 - shoal.data.open reads well
from shoal.data.registry import register
from shoal.data.source import Source, open_source

__all__ = ["Source", "digits", "open", "open_source", "register"]
