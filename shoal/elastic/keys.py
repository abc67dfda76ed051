"""The keys of a run, by the name under which this layer and those above it know them."""

from __future__ import annotations

from shoal.comm.keys import ClientKeys, RunKeys, read_key_file, write_key_file

__all__ = ["ClientKeys", "RunKeys", "read_key_file", "write_key_file"]
