"""What servers are told of the user's optimizer, found out and checked before a run starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal.core.errors import ConfigError
from shoal.store.updaters.base import State
from shoal.strategies.torch_updater import TorchUpdater, build, find_class, name_of, pack_setting

_optim = torch.optim
# these treat every element alike, so that each server can update its own slices of a parameter
_BY_ELEMENT = frozenset(
    {
        _optim.SGD, _optim.Adam, _optim.AdamW, _optim.Adagrad, _optim.RMSprop, _optim.Adadelta, _optim.Adamax,
        _optim.NAdam, _optim.RAdam, _optim.Rprop, _optim.ASGD,
    }
)  # fmt: skip
_SMALL = 4  # sizes of the parameters that an optimizer is tried on
_PLAIN = (bool, int, float, str, tuple, list, dict, type(None))
_ELSE = "use another optimizer, or strategy allreduce"


@dataclass(frozen=True)
class Described:
    """How a server updates one parameter. `group` is that of the user's optimizer, by which learning rates are given;
    `whole`: its key must not be cut."""

    options: dict[str, Any]
    group: int
    whole: bool
    updater: str = "torch"


def describe_optimizer(
    optimizer: torch.optim.Optimizer, rates: tuple[float, ...] | None = None
) -> dict[nn.Parameter, Described]:
    """What servers need to know, for each parameter that the optimizer updates: frozen ones are left out, tied ones are
    there once. `rates` are its learning rates as first stated, where a schedule has changed them since.

    Raises `ConfigError`, which says what to do, where servers could not do what this very optimizer does.
    """
    kind = type(optimizer)
    found = find_class(name_of(kind))
    if found is not kind:
        raise ConfigError(f"optimizer {name_of(kind)}: a server would import another class of that name: {_ELSE}")
    _refuse_unfit(optimizer)
    described: dict[nn.Parameter, Described] = {}
    tried: set[str] = set()
    for number, group in enumerate(optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name not in ("params", "initial_lr")}
        if rates is not None and not isinstance(settings.get("lr"), torch.Tensor):
            settings["lr"] = rates[number]
        where = f"optimizer {kind.__qualname__}: the setting {{!r}} of its parameter group {number}"
        packed = {name: pack_setting(value, where.format(name)) for name, value in settings.items()}
        _compare(optimizer, settings)
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            whole = kind not in _BY_ELEMENT
            options = {"optimizer": name_of(kind), "settings": packed}
            trial = f"{number} {parameter.dim() if whole else ''}"
            if trial not in tried:
                tried.add(trial)
                _try(options, tuple(min(_SMALL, size) for size in parameter.shape) if whole else None)
            if whole:
                options["shape"] = list(parameter.shape)
            described[parameter] = Described(options, number, whole)
    return described


def moves_at_rest(described: Described) -> bool:
    """Whether this optimizer also moves rows of a table, or what it remembers of them, that a batch has no gradient
    for: by momentum, averages that decay, or weight decay. Found out by a row of its own."""
    updater = TorchUpdater(**described.options)
    values, state = np.ones((1, 1)), State()
    updater.update(values, np.ones((1, 1)), state, updater.rate)
    before = (values.copy(), {name: array.copy() for name, array in state.items()})
    updater.update(values, np.zeros((1, 1)), state, updater.rate)
    kept = [name for name in state if state[name].shape == values.shape]
    return bool(values != before[0]) or any(bool(state[name] != before[1][name]) for name in kept)


def _refuse_unfit(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            f"optimizer LBFGS evaluates the model several times in one step, which servers cannot: {_ELSE}"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ConfigError("optimizer SparseAdam takes sparse gradients, and servers are given dense ones: use Adam")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ConfigError(
            f"optimizer {kind.__qualname__} has differentiable=True, which ends at a server: leave it out"
        )
    if any(vars(optimizer).get(f"_optimizer_step_{when}_hooks") for when in ("pre", "post")):
        raise ConfigError(f"optimizer {kind.__qualname__} has step hooks, which do not run on servers: {_ELSE}")


def _compare(optimizer: torch.optim.Optimizer, settings: Mapping[str, Any]) -> None:
    """Build it as a server does, and see that nothing is missing which lies outside of its parameter groups."""
    kind = type(optimizer)
    if kind.__module__.partition(".")[0] == "torch":
        return
    theirs = vars(build(kind, nn.Parameter(torch.zeros(_SMALL, _SMALL)), settings))
    usual = vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))]))
    for name, value in vars(optimizer).items():
        if name in usual or theirs.get(name) is value:
            continue
        if not isinstance(value, _PLAIN) or theirs.get(name) != value:
            raise ConfigError(
                f"optimizer {kind.__qualname__} keeps {name!r} outside of its parameter groups, where servers cannot "
                f"learn of it: put it into the defaults that it gives to torch.optim.Optimizer, or {_ELSE}"
            )


def _try(options: Mapping[str, Any], shape: tuple[int, ...] | None) -> None:
    """Let a server's updater take two steps, and see that all that it remembers can be kept."""
    updater = TorchUpdater(**options, shape=shape)
    tool, _ = updater._tool
    size = int(np.prod(shape)) if shape is not None else _SMALL
    values, gradient = np.full(size, 0.5, np.float32), np.full(size, 0.25, np.float32)
    state: State = {}
    chance, before = torch.get_rng_state(), _outside(tool)
    try:
        for _ in range(2):
            updater.update(values, gradient, state, updater.rate)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"optimizer {options['optimizer']} fails on a server ({type(error).__name__}: {error}): {_ELSE}"
        ) from error
    drawn = not torch.equal(chance, torch.get_rng_state())
    torch.set_rng_state(chance)
    if drawn:
        name = options["optimizer"]
        raise ConfigError(
            f"optimizer {name} draws random numbers, and a server would draw others than its copy: {_ELSE}"
        )
    for name, value in _outside(tool).items():
        if before.get(name) != value:
            raise ConfigError(
                f"optimizer {options['optimizer']} changes {name!r}, which is not in the state of a parameter, so that "
                f"servers cannot keep it: {_ELSE}"
            )


def _outside(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Plain values that an optimizer might change at a step, besides its state."""
    own = {name: value for name, value in vars(optimizer).items() if not name.startswith("_")}
    both = {**own, **{name: value for name, value in optimizer.param_groups[0].items() if name != "lr"}}
    return {name: value for name, value in both.items() if isinstance(value, bool | int | float | str | tuple)}
