"""What a worker may be doing, in one word each: for errors that say where it was."""

from __future__ import annotations

PHASES = ("start", "data", "forward", "backward", "reduce", "update", "evaluate", "save", "end", "meet", "compare")
UNKNOWN = "unknown"  # nobody has ever said it
