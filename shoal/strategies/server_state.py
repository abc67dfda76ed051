"""What an optimizer remembers of a parameter, as arrays that a server keeps, and back; whole or in slices.

A tensor keeps its name. A tensor without dimensions is an array of one element called ``name:scalar``; a number is one
called ``name:int``, ``name:float`` or ``name:bool``. So what has no colon in its name has one entry for each element of
the parameter, wherever the optimizer treats all elements alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.core.errors import ConfigError
from shoal.store.updaters.base import Array, State

_NUMBERS = {"int": (int, np.int64), "float": (float, np.float64), "bool": (bool, np.bool_)}
Entries = dict[str, Any]  # of an optimizer for one parameter


def pack_entries(entries: Mapping[str, Any], optimizer: str) -> State:
    """Entries of an optimizer's state as arrays, which share the memory of tensors where they can."""
    packed: State = {}
    for name, value in entries.items():
        if value is None:
            continue
        if not isinstance(name, str) or ":" in name:
            raise _refusal(optimizer, name, "is no plain word")
        if isinstance(value, torch.Tensor):
            array = _as_array(value, optimizer, name)
            packed[name if array.ndim else f"{name}:scalar"] = array if array.ndim else array.reshape(1)
            continue
        kind = type(value).__name__
        if kind not in _NUMBERS:
            raise _refusal(optimizer, name, f"is a {kind}, neither a tensor nor a number")
        packed[f"{name}:{kind}"] = np.array([value], _NUMBERS[kind][1])
    return packed


def unpack_entries(state: Mapping[str, Array]) -> Entries:
    """What `pack_entries` was given; tensors share the memory of the arrays."""
    entries: Entries = {}
    for packed, array in state.items():
        name, _, kind = packed.partition(":")
        if kind in _NUMBERS:
            entries[name] = _NUMBERS[kind][0](array[0])
        else:
            tensor = torch.from_numpy(array)
            entries[name] = tensor.view(()) if kind else tensor
    return entries


def join_slices(slices: Sequence[State], shape: tuple[int, ...]) -> State:
    """The state of a parameter of this shape from those of its slices, which are in order and cover it."""
    if len(slices) == 1:
        whole = dict(slices[0])
    else:
        first = slices[0]
        whole = {name: first[name] if ":" in name else np.concatenate([one[name] for one in slices]) for name in first}
    size = math.prod(shape)
    return {
        name: array.reshape(shape) if ":" not in name and array.size == size else array for name, array in whole.items()
    }


def cut_slice(state: State, start: int, stop: int) -> State:
    """The part of a parameter's state that belongs to its elements ``[start, stop)``."""
    return {name: array if ":" in name else array.reshape(-1)[start:stop] for name, array in state.items()}


def _as_array(tensor: torch.Tensor, optimizer: str, name: str) -> Array:
    if tensor.layout != torch.strided:
        raise _refusal(optimizer, name, "is a sparse tensor")
    try:
        return tensor.detach().cpu().contiguous().numpy()
    except TypeError:
        raise _refusal(optimizer, name, f"is of {tensor.dtype}, which NumPy does not know") from None


def _refusal(optimizer: str, name: object, why: str) -> ConfigError:
    cannot = f"optimizer {optimizer} keeps {name!r}, which {why}: a server cannot keep it"
    return ConfigError(f"{cannot}. Use another optimizer, or strategy allreduce")
