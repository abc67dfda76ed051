"""Whether images lie in memory by pixel or by channel: decided once a run, by trying it.

Convolutions on a CPU are quicker when the channels of a pixel lie side by side (ResNet-20: 1.18 times). It changes no
value but by rounding, so it is chosen where a model has two-dimensional convolutions and a few samples go through it
unharmed. A model that looks at its memory (``x.view(n, -1)`` after a convolution) does not, and is left as it is.
"""

from __future__ import annotations

import torch
from torch import nn

from shoal.strategies.memory import arrange
from shoal.strategies.objective import Batch, Objective

_TOLERANCE = 1e-3


def choose_layout(stated: str, model: nn.Module, objective: Objective, batch: Batch) -> str:
    """``channels_last`` or ``as_given``. Leaves model, gradients and generator as they were."""
    if stated != "auto":
        return stated
    arranged_by_user = any(not parameter.is_contiguous() for parameter in model.parameters())
    if arranged_by_user or not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return "as_given"
    generator = torch.default_generator.get_state()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        plain = _loss(model, objective, batch, buffers)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in the stubs
        arranged = _loss(model, objective, arrange(batch, "channels_last"), buffers)
        same = abs(plain - arranged) <= _TOLERANCE * max(1.0, abs(plain))
    except RuntimeError:
        same = False
    finally:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        model.zero_grad(set_to_none=True)
        torch.default_generator.set_state(generator)
        for name, buffer in model.named_buffers():
            buffer.data.copy_(buffers[name])
    return "channels_last" if same else "as_given"


def _loss(model: nn.Module, objective: Objective, batch: Batch, buffers: dict[str, torch.Tensor]) -> float:
    """The loss of one pass forward and back, from the same buffers and random numbers."""
    for name, buffer in model.named_buffers():
        buffer.data.copy_(buffers[name])
    torch.default_generator.manual_seed(0)
    model.train()
    loss = objective(model, batch)
    loss.backward()
    return float(loss.total.detach())
