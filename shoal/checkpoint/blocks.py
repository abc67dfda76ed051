"""Whether blocks fill a whole: each element once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

Shape = tuple[int, ...]


def fault_in_cover(whole: Shape, blocks: Sequence[tuple[Shape, Shape]]) -> str | None:
    """Return what is wrong with `blocks`, each (offset, shape), as a cover of `whole`; None if nothing is."""
    for offset, shape in blocks:
        if not len(offset) == len(shape) == len(whole):
            return f"a block of shape {shape} at {offset} has not the dimensions of the whole, {whole}"
        if any(o < 0 or o + s > w for o, s, w in zip(offset, shape, whole, strict=True)):
            return f"a block of shape {shape} at {offset} reaches out of the whole, {whole}"
    for (offset_a, shape_a), (offset_b, shape_b) in combinations(blocks, 2):
        if all(
            max(a, b) < min(a + size_a, b + size_b)
            for a, size_a, b, size_b in zip(offset_a, shape_a, offset_b, shape_b, strict=True)
        ):
            return f"the blocks at {offset_a} and {offset_b} overlap"
    held, needed = sum(math.prod(shape) for _, shape in blocks), math.prod(whole)
    if held != needed or not blocks:
        return f"the blocks hold {held} of {needed} elements"
    return None
