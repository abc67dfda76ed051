"""What a codec loses is not lost: it is added to the next tensor of that name.

The sum of what is decoded over many steps then follows the sum of what was given, whatever the codec leaves out of a
single one. Law 2 holds for it too: a step that is broken off leaves the residuals as they were before it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec


class ErrorFeedback:
    """A codec with a memory of what it has not sent: by name, what was given so far less what was decoded.

    Between `commit` and `commit` a name may be encoded once. Sums that are divided by their size afterwards are given
    with that `size` (the samples of a batch, say): what is left of one counts in the next by the ratio of their sizes,
    so that it weighs after the division what it would have weighed before. Else leave it at 1.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._kept: dict[str, Tensor] = {}
        self._kept_sizes: dict[str, float] = {}
        self._next: dict[str, Tensor] = {}  # what `commit` will keep
        self._next_sizes: dict[str, float] = {}
        self._flushed: set[str] = set()  # of which `commit` will keep nothing
        self._spare: dict[str, Tensor] = {}  # memory for the step after

    def encode(self, name: str, tensor: Tensor, size: float = 1.0) -> Tensor:
        """The payload of `tensor` together with what is left of those before it. `tensor` stays as it is."""
        total = self._owed(name, tensor, size)
        payload = self.codec.encode(name, total)
        self.codec.decode(name, payload, total, scale=-1.0, add=True)
        return payload

    def flush(self, name: str, tensor: Tensor, size: float = 1.0) -> None:
        """Nothing need be coded: add to `tensor` all that is left of those before it. Nothing is left then."""
        assert name not in self._next, f"{name} was encoded, and cannot be made good without a commit between"
        if name in self._kept and name not in self._flushed:
            tensor.add_(self._kept[name], alpha=size / self._kept_sizes[name])
            self._flushed.add(name)

    def _owed(self, name: str, tensor: Tensor, size: float) -> Tensor:
        """`tensor` and the residual, in memory of which `commit` will make the next residual."""
        assert name not in self._next, f"{name} was encoded twice without a commit between"
        assert name not in self._flushed, f"{name} was made good, and encoded without a commit between"
        total = self._spare.pop(name, None)
        if total is None:
            total = torch.empty_like(tensor)
        if name in self._kept:
            torch.add(tensor, self._kept[name], alpha=size / self._kept_sizes[name], out=total)
        else:
            total.copy_(tensor)
        self._next[name], self._next_sizes[name] = total, size
        return total

    def commit(self) -> None:
        """What was encoded is part of the common model now: keep what it left."""
        for name, residual in self._next.items():
            if name in self._kept:
                self._spare[name] = self._kept[name]
            self._kept[name], self._kept_sizes[name] = residual, self._next_sizes[name]
        for name in self._flushed:
            del self._kept[name], self._kept_sizes[name]
        self._next.clear()
        self._flushed.clear()
        self.codec.commit()

    def discard(self) -> None:
        """What was encoded is given up: residuals are as they were after the last `commit`."""
        self._spare.update(self._next)
        self._next.clear()
        self._flushed.clear()
        self.codec.discard()

    def state(self) -> dict[str, Tensor]:
        """The residuals after the last `commit`, for tensors of size 1; copies."""
        return {name: residual / self._kept_sizes[name] for name, residual in self._kept.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave; names that it does not hold have no residual."""
        self.discard()
        self._spare.clear()
        self._kept = {name: residual.clone() for name, residual in state.items()}
        self._kept_sizes = dict.fromkeys(state, 1.0)
