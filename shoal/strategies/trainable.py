"""What a model and its optimizer must be to be trained here: whatever would train silently wrong is refused, before the
first step, by what it is and with what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from shoal.core.errors import ConfigError

_SHOWN = 3  # names in a message
_FOREIGN = {"keras": "Keras", "tf_keras": "Keras"}  # packages whose layers are modules of torch in form only


def check_model(model: nn.Module) -> None:
    """Raise `ConfigError` where `model` cannot be trained, or not as its author means it. Leaves it as it was."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("the model has no parameter that requires a gradient: nothing can be trained")
    lazy = [name for name, p in model.named_parameters() if nn.parameter.is_lazy(p)]
    if lazy:
        raise ConfigError(
            f"the model's parameters {_some(lazy)} have no shape yet (lazy modules): "
            "run one batch through the model before you hand it over"
        )
    _refuse_foreign(model)
    odd = [f"{name} ({_kind(p)})" for name, p in model.named_parameters() if not p.is_floating_point()]
    if odd:
        raise ConfigError(
            f"the model's parameters {_some(odd)} are not floating point: gradients and averages of them have no "
            "meaning. Keep what is not trained as a buffer (register_buffer), and complex numbers as pairs of real "
            "ones (torch.view_as_complex)"
        )
    _refuse_stuck(model)


def _refuse_foreign(model: nn.Module) -> None:
    """Keras' layers are modules of torch, but whether they train is an argument of their call; and what they add to the
    loss, and their running statistics, are kept elsewhere."""
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            package = _FOREIGN.get(kind.__module__.partition(".")[0])
            if package is not None:
                raise ConfigError(
                    f"{_place(name, module)} is a layer of {package}, whose layers do not follow PyTorch's train() and "
                    "eval(): dropout and batch normalisation would be off, and regularisers left out. "
                    f"{package} is not supported: write the model with torch.nn, or train it with {package} itself"
                )


def _refuse_stuck(model: nn.Module) -> None:
    """Layers that train in one way and predict in another must be told by train() and eval(). One that stays in
    evaluation mode while the others train may be meant so (frozen statistics); the reverse cannot be evaluated."""
    before = [(module, module.training) for module in model.modules()]
    try:
        _switch(model, False)
        stuck = [_place(name, module) for name, module in _changing(model) if module.training]
        if model.training or stuck:
            raise ConfigError(
                f"model.eval() leaves {_some(stuck) if stuck else 'the model itself'} in training mode: what is "
                "evaluated would not be what is trained. A train() or eval() of your own must call that of nn.Module "
                "for all layers, and layers kept in a list must be in an nn.ModuleList"
            )
        _switch(model, True)
        if not model.training:
            raise ConfigError(
                "model.train() leaves the model in evaluation mode: dropout and batch normalisation would be off. A "
                "train() of your own must call that of nn.Module"
            )
    finally:
        for module, training in before:
            if module.training != training:
                module.training = training


def _switch(model: nn.Module, training: bool) -> None:
    try:
        model.train() if training else model.eval()
    except NotImplementedError as error:
        raise ConfigError(f"the model refuses {'train()' if training else 'eval()'}: {error}") from None


def _changing(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers that look at whether they train, wherever the model keeps them."""
    for name, module in (*model.named_modules(), *_hidden(model)):
        drops = isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout > 0
        averages = isinstance(module, _NormBase) and module.track_running_stats
        written = not type(module).__module__.startswith("torch.")  # by a user: it may look at it
        if drops or averages or written or isinstance(module, (_DropoutNd, nn.RReLU)):
            yield name, module


def _hidden(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that are kept in plain lists, tuples and dictionaries, where PyTorch does not see them."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in _OWN_OF_MODULES or not isinstance(value, (list, tuple, dict)):
                continue
            for at, kept in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(kept, nn.Module):
                    place = f"{name}.{key}[{at!r}]".lstrip(".")
                    yield from ((f"{place}.{inner}".rstrip("."), one) for inner, one in kept.named_modules())


_OWN_OF_MODULES = frozenset(vars(nn.Module()))


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise `ConfigError` where `optimizer` does not update just what is to be trained of `model`."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "optimizer: LBFGS evaluates the model several times in one step, which a distributed step cannot: "
            "use an optimizer that takes one gradient a step"
        )
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    own = {id(p): name for name, p in model.named_parameters()}
    strangers = [str(list(p.shape)) for at, p in held.items() if at not in own]
    left_out = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if left_out:
        whose = f", and {len(strangers)} that are not the model's" if strangers else ""
        raise ConfigError(
            f"the optimizer ({kind}) holds {len(own) - len(left_out)} of the model's {len(own)} parameters{whose}: "
            f"{_some(left_out)} would never change. Give it all that require a gradient "
            "(optimizer=lambda params: ...(params, lr=...)), or say what is not to be trained by requires_grad_(False)"
        )
    if strangers:
        raise ConfigError(
            f"the optimizer ({kind}) holds {len(strangers)} parameters that are not the model's, of shape "
            f"{_some(strangers)}: workers could not keep them equal. Make what is trained a part of the model (a loss "
            "with parameters, too), and the optimizer after the model is complete"
        )


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def _kind(parameter: nn.Parameter) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def _place(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"
