"""Jobs that are there by name, so that the common ones need no code."""

from shoal.data.preparing.builtin import augment, convert, dedupe, normalise, select, vocabulary  # noqa: F401 - register
from shoal.data.preparing.builtin.base import builtin_jobs, make_builtin

__all__ = ["builtin_jobs", "make_builtin"]
