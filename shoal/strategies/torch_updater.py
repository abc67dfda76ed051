"""The user's own optimizer as an updater of the store: a server lets it step on the slices that it holds.

Imported only where it is needed, on servers of a training run and by whoever describes an optimizer for them (see
`described`): the store itself knows nothing of PyTorch.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from shoal.core.errors import ConfigError
from shoal.store.updaters.base import Array, State, Updater, updaters
from shoal.strategies.server_state import pack_entries, unpack_entries

REMEDY = "move the class into a module that the script imports from a file beside it, or use strategy allreduce"
_TENSOR, _TUPLE = "@tensor", "@tuple"  # what JSON has no word for
_NOTHING = torch.empty(0)


@updaters.add("torch")
@dataclass(frozen=True)
class TorchUpdater(Updater):
    """Steps of an optimizer of PyTorch, or one of its kind.

    `optimizer` names its class, ``module:qualified name``; `settings` are those of its parameter group, as
    `pack_setting` writes them. `shape` is given where it looks at a whole array, and is that array's. What it remembers
    lies in the state, under the names that it uses itself (see `server_state`).
    """

    optimizer: str
    settings: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    looks_at_whole: ClassVar[bool]  # of each instance

    def __post_init__(self) -> None:
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "looks_at_whole", self.shape is not None)
        _ = self._tool  # what is wrong with it is said when a slice is declared, not when it is updated
        rate = self._own.get("lr")
        if rate is not None:
            object.__setattr__(self, "rate", float(rate))

    @cached_property
    def _own(self) -> dict[str, Any]:
        return {name: unpack_setting(value) for name, value in self.settings.items()}

    @cached_property
    def _tool(self) -> tuple[torch.optim.Optimizer, nn.Parameter]:
        """An optimizer over one parameter, which is every update's in turn. Between updates both are empty."""
        parameter = nn.Parameter(torch.zeros(self.shape or 1))
        built = build(find_class(self.optimizer), parameter, self._own)
        parameter.data = _NOTHING
        return built, parameter

    @cached_property
    def _foreign(self) -> bool:
        """Whether it is not PyTorch's, and so might change the gradient that it is given."""
        return self.optimizer.partition(":")[0].partition(".")[0] != "torch"

    def update(self, values: Array, gradient: Array, state: State, rate: float, rows: Array | None = None) -> None:
        if rows is None:
            self._step(values, gradient, state, rate)
            return
        if self.shape is not None:
            raise ConfigError(f"{self.optimizer} looks at whole arrays: it cannot update single rows of a table")
        height = len(values)
        gathered = values[rows]
        kept = {
            name: array[rows] if len(array) == height and _by_element(name) else array for name, array in state.items()
        }
        self._step(gathered, gradient, kept, rate)
        values[rows] = gathered
        for name, array in kept.items():
            if not _by_element(name):
                state[name] = array
                continue
            if name not in state:
                state[name] = self._at_rest(name, values, rate)
            state[name][rows] = array

    def _step(self, values: Array, gradient: Array, state: State, rate: float) -> None:
        optimizer, parameter = self._tool
        group = optimizer.param_groups[0]
        if isinstance(group.get("lr"), torch.Tensor):
            group["lr"].fill_(rate)
        elif "lr" in group:
            group["lr"] = rate
        shape = self.shape if self.shape is not None else values.shape
        entries = unpack_entries(state)
        try:
            parameter.data = torch.from_numpy(values).view(shape)
            parameter.grad = torch.from_numpy(gradient.copy() if self._foreign else gradient).reshape(shape)
            optimizer.state[parameter] = entries
            optimizer.step()
            kept = pack_entries(optimizer.state[parameter], self.optimizer)
        finally:  # memory of others must not be held on to
            optimizer.state.clear()
            parameter.grad = None
            parameter.data = _NOTHING
        for name in state.keys() - kept.keys():
            del state[name]
        state.update(kept)

    def _at_rest(self, name: str, values: Array, rate: float) -> Array:
        """What the optimizer keeps for rows that never had a gradient: what it makes of one that is zero."""
        alone: State = {}
        self._step(
            np.zeros((1, *values.shape[1:]), values.dtype), np.zeros((1, *values.shape[1:]), values.dtype), alone, rate
        )
        rest = alone[name]
        whole = np.zeros((len(values), *rest.shape[1:]), rest.dtype)
        if rest.any():
            whole[...] = rest
        return whole


def _by_element(name: str) -> bool:
    return ":" not in name


def build(
    kind: type[torch.optim.Optimizer], parameter: nn.Parameter, settings: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """An optimizer of this kind over one parameter, whose group has these settings. Raises `ConfigError`."""
    accepted = inspect.signature(kind).parameters
    given = {name: value for name, value in settings.items() if name in accepted}
    try:
        return kind([{"params": [parameter], **settings}], **given)
    except Exception as error:
        raise ConfigError(
            f"optimizer {kind.__qualname__} cannot be built again on a server from the settings of its parameter group "
            f"({type(error).__name__}: {error}): use one that can, or use strategy allreduce"
        ) from error


def name_of(kind: type) -> str:
    """The name by which a server finds this class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: str) -> type[torch.optim.Optimizer]:
    """The class called ``module:qualified name``; raises `ConfigError` where there is none, or it is no optimizer."""
    module, _, qualified = name.partition(":")
    if module == "__main__" or "<locals>" in qualified:
        raise ConfigError(f"optimizer {name} is defined in the script itself, which servers do not run: {REMEDY}")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(
            f"optimizer {name}: a server cannot import {module} ({type(error).__name__}: {error}): {REMEDY}"
        ) from error
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ConfigError(f"optimizer {name}: {module} has no optimizer class of that name: {REMEDY}")
    return found


def pack_setting(value: object, where: str) -> Any:
    """A setting of a parameter group as plain data. Raises `ConfigError` that begins with `where`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return {_TENSOR: [value.item(), str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, tuple | list):
        packed = [pack_setting(one, where) for one in value]
        return {_TUPLE: packed} if isinstance(value, tuple) else packed
    if isinstance(value, np.generic):
        return value.item()
    raise ConfigError(f"{where} holds a {type(value).__name__}: servers are told numbers and words, not objects")


def unpack_setting(value: Any) -> Any:
    """What `pack_setting` was given."""
    if isinstance(value, list | tuple):
        return [unpack_setting(one) for one in value]
    if isinstance(value, dict) and _TUPLE in value:
        return tuple(unpack_setting(one) for one in value[_TUPLE])
    if isinstance(value, dict) and _TENSOR in value:
        number, dtype, shape = value[_TENSOR]
        return torch.full(tuple(shape), number, dtype=getattr(torch, dtype))
    return value


def _say_it_once() -> None:
    """PyTorch warns once in a process of arrays that may not be written. Gradients are such, and nobody writes them."""
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)


_say_it_once()
