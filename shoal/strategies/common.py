"""The weights that trainers have in common: where a round of local steps began, and how far each has gone since."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class CommonWeights:
    """A copy of what local steps change in a module: its trained parameters and the running statistics. The difference
    from it travels as one flat vector, parameters first."""

    def __init__(self, module: nn.Module) -> None:
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        buffers = {
            name: b
            for name, b in module.named_buffers()
            if b.is_floating_point() or (b.dtype == torch.int64 and b.numel() == 1)
        }
        self.names = list(parameters)
        self._live: list[Tensor] = [t.detach() for t in (*parameters.values(), *buffers.values())]
        self.shapes = [t.shape for t in self._live[: len(self.names)]]
        double = any(t.dtype == torch.float64 for t in self._live)
        self._dtype = torch.float64 if double else torch.float32
        self._anchor = [t.clone() for t in self._live]
        self.numel = sum(t.numel() for t in self._live)
        self.flat = torch.zeros(self.numel, dtype=self._dtype)  # where differences are put together

    def parts(self, flat: Tensor) -> Iterator[Tensor]:
        """The places of the tensors in a flat vector, in the shape of each."""
        at = 0
        for tensor in self._live:
            yield flat[at : at + tensor.numel()].view(tensor.shape)
            at += tensor.numel()

    def difference(self) -> Tensor:
        """How far the module is from the common weights: in `flat`, which the caller may overwrite."""
        for part, live, anchor in zip(self.parts(self.flat), self._live, self._anchor, strict=True):
            torch.sub(live, anchor, out=part) if live.dtype == part.dtype else part.copy_(live - anchor)
        return self.flat

    def move(self, step: Tensor) -> None:
        """The common weights move by `step`, and the module with them."""
        for part, live, anchor in zip(self.parts(step), self._live, self._anchor, strict=True):
            anchor.add_(part if anchor.is_floating_point() else part.round().to(anchor.dtype))
            live.copy_(anchor)

    def settle(self) -> None:
        """What the module holds now is common: it was loaded, or copied from another worker."""
        for live, anchor in zip(self._live, self._anchor, strict=True):
            anchor.copy_(live)

    def restore(self) -> None:
        """Local steps are given up."""
        for live, anchor in zip(self._live, self._anchor, strict=True):
            live.copy_(anchor)

    def swap(self) -> None:
        """Exchange what the module holds and what is common. Twice is as before."""
        for live, anchor in zip(self._live, self._anchor, strict=True):
            held = live.clone()
            live.copy_(anchor)
            anchor.copy_(held)
