"""Where files lie. The value itself is in `shoal.core.places`, because checkpoints are kept in places, too."""

from shoal.core.places import AbsentError, AccessError, Entry, Place, UnreachableError

__all__ = ["AbsentError", "AccessError", "Entry", "Place", "UnreachableError"]
