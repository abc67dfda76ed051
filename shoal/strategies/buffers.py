"""Running statistics under law 1: what a forward pass does to buffers is combined over the grains of a step.

Every grain starts from the same values; the changes are averaged by samples. An update of batch normalisation is
linear in the statistics of its batch, so this is the update by the averaged statistics, whoever computed which grain.
A counter moves by one in every grain, so by one on average: once a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError


class RunningBuffers:
    """The buffers of a module that a forward pass may change: floating ones and single whole numbers (counters).

    One step: `begin`; for each pass `before_pass`, forward, `after_pass`; then `changes`, a sum over the group,
    and `commit`, or `rollback`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._checked = False
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in module.buffers():
            if buffer.is_floating_point() or (buffer.dtype == torch.int64 and buffer.numel() == 1):
                by_dtype.setdefault(buffer.dtype, []).append(buffer)
        self._flats = [_flatten(buffers) for buffers in by_dtype.values()]
        self._addresses = {name: buffer.data_ptr() for name, buffer in module.named_buffers()}
        self._bases = [torch.empty_like(flat) for flat in self._flats]
        self._changes = [torch.zeros_like(flat, dtype=torch.float64) for flat in self._flats]

    @property
    def numel(self) -> int:
        """The length of the vector that `changes` fills."""
        return sum(flat.numel() for flat in self._flats)

    def begin(self) -> None:
        """A step begins: remember the values from which every grain starts."""
        for base, flat, change in zip(self._bases, self._flats, self._changes, strict=True):
            base.copy_(flat)
            change.zero_()

    def before_pass(self) -> None:
        for base, flat in zip(self._bases, self._flats, strict=True):
            flat.copy_(base)

    def after_pass(self, share: float) -> None:
        """Take note of what a pass with `share` of the global batch's samples did."""
        for base, flat, change in zip(self._bases, self._flats, self._changes, strict=True):
            change.add_(flat.double() - base.double(), alpha=share)
        if not self._checked:
            self._refuse_replaced()

    def _refuse_replaced(self) -> None:
        self._checked = True
        for name, buffer in self._module.named_buffers():
            if self._addresses.get(name) != buffer.data_ptr():
                raise ConfigError(
                    f"the model replaces its buffer {name!r} in forward: change it in place "
                    f"(self.{name.rsplit('.', 1)[-1]}.copy_(...)), so that workers can combine it"
                )

    def changes(self, out: Tensor) -> None:
        """Write this worker's part of the averaged change to `out`; the parts of all workers add up to the whole."""
        at = 0
        for change in self._changes:
            out[at : at + change.numel()].copy_(change)
            at += change.numel()

    def commit(self, change: Tensor) -> None:
        """Apply the group's change."""
        at = 0
        for base, flat in zip(self._bases, self._flats, strict=True):
            part = change[at : at + flat.numel()]
            flat.copy_(base.double() + (part if flat.is_floating_point() else part.round()))
            at += flat.numel()

    @property
    def kinds(self) -> list[tuple[int, int, str]]:
        """The ranges of that vector whose buffers have one type: start, stop, and the type to keep it in."""
        found, at = [], 0
        for flat in self._flats:
            kind = str(flat.dtype).removeprefix("torch.") if flat.is_floating_point() else "float64"
            found.append((at, at + flat.numel(), kind))
            at += flat.numel()
        return found

    def read(self) -> Tensor:
        """The values of all buffers in one vector."""
        values = torch.empty(self.numel, dtype=torch.float64)
        at = 0
        for flat in self._flats:
            values[at : at + flat.numel()].copy_(flat)
            at += flat.numel()
        return values

    def assign(self, values: Tensor) -> None:
        """Take over the values that `read` gives, or what has become of them."""
        at = 0
        for flat in self._flats:
            part = values[at : at + flat.numel()]
            flat.copy_(part if flat.is_floating_point() else part.round())
            at += flat.numel()

    def rollback(self) -> None:
        """The step was discarded: as if no pass had been run."""
        self.before_pass()


def _flatten(buffers: list[Tensor]) -> Tensor:
    """Move buffers into one flat tensor, of which they become views, so that a step handles them in one operation."""
    flat = torch.empty(sum(buffer.numel() for buffer in buffers), dtype=buffers[0].dtype, device=buffers[0].device)
    at = 0
    for buffer in buffers:
        view = flat[at : at + buffer.numel()].view(buffer.shape)
        view.copy_(buffer)
        buffer.data = view
        at += buffer.numel()
    return flat
