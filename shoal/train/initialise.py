"""Initial parameters by name, as a function of the seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from shoal.core.errors import ConfigError, nearest
from shoal.core.seeds import init_seed

Filler = Callable[[torch.Tensor], object]

# what fills matrices and kernels; vectors (biases, scales) keep what their module's own default gives them
FILLERS: dict[str, Filler] = {
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": lambda t: nn.init.kaiming_uniform_(t, nonlinearity="relu"),
    "kaiming_normal": lambda t: nn.init.kaiming_normal_(t, nonlinearity="relu"),
    "orthogonal": nn.init.orthogonal_,
    "normal": lambda t: nn.init.normal_(t, std=0.02),
    "zeros": nn.init.zeros_,
}


def known() -> list[str]:
    """``keep`` leaves the weights as the script made them, ``default`` draws each module's own initialisation anew."""
    return ["keep", "default", *FILLERS]


def initialise(model: nn.Module, init: str, seed: int) -> None:
    """Give `model` its initial parameters. Raises `ConfigError` with the nearest name on an unknown `init`."""
    if init not in known():
        raise ConfigError(f"init={init!r} is unknown: {nearest(init, known())}")
    if init == "keep":
        return
    torch.manual_seed(init_seed(seed))
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    if init in FILLERS:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.dim() >= 2:
                    FILLERS[init](parameter)
