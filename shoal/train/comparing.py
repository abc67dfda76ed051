"""Do all workers read the same samples, and does the model do the same to them everywhere?

Where workers go in step they compare before the first one. Where they do not, nobody may wait for a worker that is busy
with it: each finds its own answer when it begins, and they are compared when the workers meet.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.comm.group import Group
from shoal.core.config import Config
from shoal.core.errors import UserError
from shoal.core.seeds import grain_seed
from shoal.core.world import View
from shoal.data.following import FollowingSource
from shoal.data.source import Source
from shoal.strategies.likeness import outliers
from shoal.strategies.program import Program
from shoal.strategies.replica import to_device

_SAMPLES = 4  # that every worker reads
_PASSED = 2  # of them that every worker runs through its model
_NEAR = 1e-3  # relative: machines of different kinds round differently


def compares(config: Config, train: Source) -> bool:
    """Whether all workers must read the same, and can be asked to before the first step."""
    return config.compare == "on" and config.loader.once == "on" and not isinstance(train, FollowingSource)


def samples_digest(source: Source, config: Config) -> str:
    """Of the first few samples, as a worker reads them in the first epoch."""
    train, told = source.sampled(), hashlib.blake2b(digest_size=8)
    _add(told, train.fetch(np.arange(min(_SAMPLES, len(train)), dtype=np.int64), 0, config.seed))
    return told.hexdigest()


def _add(told: Any, part: Any) -> None:
    """Enter whatever a batch is made of. What is no data is passed over."""
    if isinstance(part, Tensor):
        _add(told, part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() if part.numel() else str(part))
    elif isinstance(part, np.ndarray) and part.dtype != object:
        told.update(f"{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    elif isinstance(part, Mapping):
        for key in part:
            _add(told, str(key))
            _add(told, part[key])
    elif isinstance(part, list | tuple):
        for one in part:
            _add(told, one)
    elif isinstance(part, str | bytes | int | float | np.generic):
        told.update(repr(part).encode())


def gather_losses(loss: float, group: Group) -> list[float]:
    """What every worker has found by `probe`. Collective."""
    words = group.gather_bytes(json.dumps(loss).encode(), "comparing losses")
    return [float(json.loads(word)) for word in words]


def compare_losses(losses: Sequence[float], view: View) -> None:
    """Raise `UserError` where what `probe` has found is another on some workers, though all have the same parameters.
    `losses` are in the order of ranks. Pure."""
    odd = outliers([(loss, _NEAR * abs(loss)) for loss in losses])
    if odd:
        most = next(rank for rank in range(len(losses)) if rank not in odd)
        who, whom = (", ".join(str(view.members[rank]) for rank in ranks) for ranks in (odd, [most]))
        raise UserError(
            f"{who} and {whom} have the same parameters and read the same samples, and find another loss for them: "
            f"{losses[odd[0]]:.6g} against {losses[most]:.6g}. Look for random values in the model or the loss that "
            "are not torch's own, for tensors that are neither parameters nor buffers (register_buffer), and for code "
            "that depends on the rank; or use --set compare=off if it is meant so"
        )


def probe(program: Program, train: Source, config: Config, device: str) -> float:
    """The loss of the first samples, which all workers must find alike while they have the same parameters. Leaves
    model, gradients and generator as they were. Not collective."""
    model, source = program.model, train.sampled()
    few = source.fetch(np.arange(min(_PASSED, config.global_batch, len(source)), dtype=np.int64), 0, config.seed)
    generator, before = torch.default_generator.get_state(), model.training
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        model.train()
        torch.default_generator.manual_seed(grain_seed(config.seed, 0, 0))
        total = float(program.objective(model, to_device(few, device)).total.detach())
        return total if math.isfinite(total) else 0.0  # a step will say so, and where
    finally:
        torch.default_generator.set_state(generator)
        model.train(before)
        for buffer, value in buffers:
            buffer.data.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
