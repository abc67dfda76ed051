"""Optimizers as users write them, in a module that a server can import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class InPlace(torch.optim.Optimizer):
    """Changes the gradient that it is given, counts in a plain integer, and looks at the norm of the whole."""

    def __init__(self, params: Iterable[Any], lr: float, decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["norm"] = float(p.norm())
                p.grad.add_(p, alpha=group["decay"])
                p.sub_(p.grad, alpha=group["lr"] / (1 + state["norm"]))


class Outside(torch.optim.SGD):
    """Has a setting that is not in its parameter groups."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1, boost: float = 1.0) -> None:
        super().__init__(params, lr=lr)
        self.boost = boost


class Counting(torch.optim.SGD):
    """Counts its steps in itself."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


class Noisy(torch.optim.SGD):
    """Adds noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=1e-3)


class Listing(torch.optim.SGD):
    """Keeps a list."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("history", []).append(1.0)
