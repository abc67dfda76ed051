"""Jobs that are there by name, so that the common ones need no code."""

from shoal.data.preparing.builtin import (  # noqa: F401 - they register
    augment,
    convert,
    dedupe,
    fill,
    normalise,
    resize,
    select,
    vocabulary,
)
from shoal.data.preparing.builtin.base import builtin_jobs, make_builtin

__all__ = ["builtin_jobs", "make_builtin"]
