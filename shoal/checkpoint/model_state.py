"""A module's parameters and persistent buffers as named tensors, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from shoal.core.errors import CheckpointError

PREFIX = "model."


def dump_model(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of `module` by ``model.<name>``, and the aliases of those that have several names.

    The tensors are the module's own, not copies. A tied parameter is there once, under its first name; the
    aliases map each further name to that. Raises CheckpointError for a module with state that is no tensor.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for tensor, names in _named(module):
        tensors[names[0]] = tensor
        aliases.update(dict.fromkeys(names[1:], names[0]))
    return tensors, aliases


@torch.no_grad()
def load_model(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy those of `tensors` whose names begin with ``model.`` into `module`, in place.

    Raises CheckpointError that names what is missing, unexpected, or of another shape or type; `module` is
    then as it was.
    """
    given = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    pairs: list[tuple[Tensor, Tensor]] = []
    missing: list[str] = []
    differing: list[str] = []
    expected: set[str] = set()
    for own, names in _named(module):
        found = [name for name in names if name in given]
        if not found:
            missing.append(names[0])
            continue
        # should several names be there, they were not tied when it was saved, and the others are unexpected
        name, source = found[0], given[found[0]]
        expected.add(name)
        if source.shape != own.shape or source.dtype != own.dtype:
            differing.append(f"{name} is {_kind(source)} in the checkpoint and {_kind(own)} in the program")
        pairs.append((own, source))
    unexpected = [name for name in given if name not in expected]
    problems = [f"{name} is missing in the checkpoint" for name in missing]
    problems += [f"{name} is not in the program's model, or is tied to another there" for name in unexpected]
    refuse(problems + differing, "model")
    for own, source in pairs:
        own.copy_(source)


def refuse(problems: list[str], what: str) -> None:
    """Raise CheckpointError if there are problems, naming the first few."""
    if problems:
        shown = "".join(f"  {problem}\n" for problem in problems[:8])
        more = f"  and {len(problems) - 8} more\n" if len(problems) > 8 else ""
        raise CheckpointError(
            f"the checkpoint does not fit the program's {what}:\n{shown}{more}"
            f"Build the {what} as it was when it was saved, or choose another --run-dir to start anew."
        )


def _named(module: nn.Module) -> Iterator[tuple[Tensor, list[str]]]:
    """Each distinct tensor of the module with all its names, in the module's order.

    Goes through the modules itself: hooks may change a state_dict so that it does not hold the live tensors.
    """
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{PREFIX}{path}." if path else PREFIX
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise CheckpointError(
                f"{type(part).__name__} ({prefix[:-1]}) keeps extra state (get_extra_state), which a "
                "checkpoint cannot hold: keep it in buffers"
            )
        persistent = ((n, b) for n, b in part._buffers.items() if n not in part._non_persistent_buffers_set)
        for name, tensor in (*part._parameters.items(), *persistent):
            if tensor is not None:
                found.setdefault(id(tensor), (tensor, []))[1].append(prefix + name)
    yield from found.values()


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
