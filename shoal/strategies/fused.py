"""PyTorch's fused update kernels, where the user has left the choice open.

An element-wise optimizer reads and writes every parameter several times over; the fused kernels do it once: SGD with
momentum takes two thirds of the time on a CPU, Adam a fifth. They compute the same update up to rounding. PyTorch
itself does not choose them by default.
"""

from __future__ import annotations

from typing import Any

import torch

from shoal.strategies.memory import is_dense

_KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_DTYPES = (torch.float32, torch.float64)


def choose_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Switch `optimizer` to its fused kernels if it has them and its user has not said `foreach` or `fused`. Before
    its first step only. Returns whether it did."""
    if type(optimizer) not in _KINDS or optimizer.state:
        return False
    for group in optimizer.param_groups:
        said = group.get("foreach") is not None or group.get("fused") is not None
        if said or group.get("differentiable") or isinstance(group["lr"], torch.Tensor):
            return False
        # the kernels walk through memory: parameters, gradients and moments must lie in the same order
        if any(p.dtype not in _DTYPES or not is_dense(p) for p in group["params"]):
            return False
    for group in optimizer.param_groups:
        group["fused"] = True
    return True


def step(optimizer: torch.optim.Optimizer) -> None:
    """One update. PyTorch's fused SGD cannot do it where some parameters have a momentum and others have their first
    gradient only now, as one that is rarely used: then the plain kernel does, for this step."""
    mixed = [group for group in optimizer.param_groups if group.get("fused") and _is_mixed(optimizer, group)]
    for group in mixed:
        group["fused"] = False
    try:
        optimizer.step()
    finally:
        for group in mixed:
            group["fused"] = True


def _is_mixed(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    if not isinstance(optimizer, torch.optim.SGD) or not group["momentum"]:
        return False
    moved = [p for p in group["params"] if p.grad is not None]
    begun = sum(optimizer.state[p].get("momentum_buffer") is not None for p in moved if p in optimizer.state)
    return 0 < begun < len(moved)
