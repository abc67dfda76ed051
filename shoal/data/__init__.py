"""Where samples come from, and in which order."""

from shoal.data.digits import digits
from shoal.data.following import follow
from shoal.data.source import Source, open_source

__all__ = ["Source", "digits", "follow", "open_source"]
