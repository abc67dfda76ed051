"""An optimizer's state as named tensors and JSON, by the names of the parameters, and back. Bits are kept."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from shoal.checkpoint.model_state import refuse
from shoal.core.errors import CheckpointError

PREFIX = "optimizer."
_GROUP = "@group"  # optimizer.@group.0.lr: hyper-parameters that are tensors
_TENSOR, _TUPLE = "@tensor", "@tuple"  # what JSON has no word for

Names = Mapping[Parameter, str]
Values = dict[str, Any]


def dump_optimizer(optimizer: Optimizer, names: Names) -> tuple[dict[str, Tensor], Values]:
    """Return the tensors of the state by ``optimizer.<parameter>.<key>``, and everything else as JSON.

    `names` must name every parameter of the optimizer. The tensors are the optimizer's own, not copies.
    Raises CheckpointError naming the optimizer and the entry if something is neither a tensor nor plain data.
    """
    kind = type(optimizer).__name__
    tensors: dict[str, Tensor] = {}
    state: dict[str, dict[str, Any]] = {}
    for parameter, entries in optimizer.state.items():
        name = _name(parameter, names, kind)
        for key, value in entries.items():
            if not isinstance(key, str) or "." in key:
                raise CheckpointError(f"{kind} keeps {key!r} for {name}: a checkpoint needs a plain word as its key")
            if isinstance(value, Tensor):
                tensors[f"{PREFIX}{name}.{key}"] = value
            else:
                state.setdefault(name, {})[key] = _encode(value, f"{kind} keeps {key!r} for {name}, which")
    groups: list[dict[str, Any]] = []
    for number, group in enumerate(optimizer.param_groups):
        options: dict[str, Any] = {}
        for key, value in group.items():
            if key == "params":
                continue
            if isinstance(value, Tensor):
                place = f"{PREFIX}{_GROUP}.{number}.{key}"
                tensors[place], options[key] = value, {_TENSOR: place}
            else:
                options[key] = _encode(value, f"{kind} has the option {key!r} in group {number}, which")
        groups.append({"params": [_name(p, names, kind) for p in group["params"]], "options": options})
    return tensors, {"kind": kind, "groups": groups, "state": state}


def load_optimizer(
    optimizer: Optimizer, names: Names, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> None:
    """Give `optimizer` the state and the hyper-parameters that `dump_optimizer` returned.

    Of `tensors` only those count whose names begin with ``optimizer.``; they are copied. Raises
    CheckpointError if it is another optimizer, has other parameters, or a tensor belongs to none; `optimizer`
    is then as it was.
    """
    kind = type(optimizer).__name__
    own = [{_name(p, names, kind): p for p in group["params"]} for group in optimizer.param_groups]
    _refuse_other(kind, own, values)
    options = [_decode(group["options"], tensors) for group in values["groups"]]
    homes: dict[str, tuple[Parameter, Mapping[str, Any]]] = {
        name: (parameter, loaded)
        for group, loaded in zip(own, options, strict=True)
        for name, parameter in group.items()
    }
    state: dict[Tensor, dict[str, Any]] = {}
    strangers: list[str] = []
    for place, tensor in tensors.items():
        if not place.startswith(PREFIX) or place.startswith(f"{PREFIX}{_GROUP}."):
            continue
        name, _, key = place.removeprefix(PREFIX).rpartition(".")
        if name in homes:
            state.setdefault(homes[name][0], {})[key] = _copy_home(tensor, key, *homes[name])
        else:
            strangers.append(f"{place} belongs to no parameter of the program's optimizer")
    refuse(strangers, "optimizer")
    for name, entries in values["state"].items():
        state.setdefault(homes[name][0], {}).update(_decode(entries, tensors))
    optimizer.state.clear()
    optimizer.state.update(state)
    for group, loaded in zip(optimizer.param_groups, options, strict=True):
        group.update(loaded)


def _refuse_other(kind: str, own: list[dict[str, Parameter]], values: Mapping[str, Any]) -> None:
    if kind != values["kind"]:
        refuse([f"it is {values['kind']} in the checkpoint and {kind} in the program"], "optimizer")
    saved = [group["params"] for group in values["groups"]]
    if len(saved) != len(own):
        refuse(
            [f"it has {len(saved)} parameter groups in the checkpoint and {len(own)} in the program"],
            "optimizer",
        )
    problems: list[str] = []
    for number, (before, now) in enumerate(zip(saved, own, strict=True)):
        problems += [f"{n} is in group {number} only in the checkpoint" for n in before if n not in now]
        problems += [f"{n} is in group {number} only in the program" for n in now if n not in set(before)]
    refuse(problems, "optimizer")


def _name(parameter: object, names: Names, kind: str) -> str:
    if isinstance(parameter, Parameter) and parameter in names:
        return names[parameter]
    what = f"a tensor of shape {tuple(parameter.shape)}" if isinstance(parameter, Tensor) else repr(parameter)
    raise CheckpointError(
        f"{kind} has state for {what}, which is none of the model's parameters: it cannot be saved by name"
    )


def _copy_home(tensor: Tensor, key: str, parameter: Parameter, options: Mapping[str, Any]) -> Tensor:
    """A copy where the optimizer would have made it: on the parameter's device and in its memory order."""
    if key == "step" and not (options.get("capturable") or options.get("fused")):
        return tensor.clone()  # counted on the CPU, wherever the parameter is
    if tensor.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
    return tensor.to(parameter.device, copy=True)


def _encode(value: object, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):  # numpy's scalars too: a learning rate from logspace, say
        return float(value)
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(inner, where) for inner in value]}
    if isinstance(value, list):
        return [_encode(inner, where) for inner in value]
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("@") for key in value):
        return {key: _encode(inner, where) for key, inner in value.items()}
    raise CheckpointError(
        f"{where} holds a {type(value).__name__}: a checkpoint holds tensors by themselves, numbers, "
        "strings, lists and dictionaries. Use another optimizer, or set checkpoint.every=never"
    )


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(inner, tensors) for inner in value]
    if isinstance(value, dict):
        if _TUPLE in value:
            return tuple(_decode(inner, tensors) for inner in value[_TUPLE])
        if _TENSOR in value:
            return tensors[value[_TENSOR]].clone()
        return {key: _decode(inner, tensors) for key, inner in value.items()}
    return value
