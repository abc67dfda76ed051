"""What a user should know of a run before its first step."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from shoal.core.config import Config
from shoal.core.cursor import Batches
from shoal.core.order import Mixing
from shoal.train.distribution import distribution
from shoal.train.idle import idle_workers
from shoal.train.opening import Opened
from shoal.train.place import Place
from shoal.train.spec import RunSpec


def trainable(model: nn.Module) -> tuple[int, int]:
    """The number of trainable parameters, and of all."""
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, grad in counts if grad), sum(n for n, _ in counts)


def mixing_of(spec: RunSpec, config: Config, batches: Batches) -> Mixing | None:
    """How well the order of samples mixes, where there is anything to say about it."""
    if spec.growing is not None:  # nothing is there yet
        return None
    return spec.train.order(config.seed, config.loader.shuffle, batches).mixing


def header(spec: RunSpec, opened: Opened, place: Place, batches: Batches) -> tuple[tuple[str, str], ...]:
    """Pairs of a name and a value, in the order in which they are shown."""
    config, group = opened.config, place.group
    some, every = trainable(spec.program.model)
    parameters = f"{every:,}" if some == every else f"{some:,} trained of {every:,}"
    cutting = opened.cutting
    how = f"grains of {cutting.grain}, {'several to a pass' if cutting.merged else f'one to a pass: {cutting.why}'}"
    how += ", batch normalisation over all of it" if config.statistics == "global" else ""
    stated = config.weights is not None and len(config.weights) == group.size
    idle = idle_workers(spec.strategy, batches, cutting, config.share_weights if stated else (1.0,) * group.size)
    mixing = mixing_of(spec, config, batches)
    length = f"{config.steps} steps" if config.steps else f"{config.epochs} epochs" if config.epochs else "open"
    data = f"{batches.samples:,} samples, {batches.per_epoch} steps an epoch"
    if spec.growing is not None:
        data = f"what comes to {spec.growing.place}, each file once"
    return (
        *distribution(config, spec.strategy, place.view),
        ("transport", group.backend),
        ("model", f"{type(spec.program.model).__name__}, {parameters} parameters"),
        ("data", data),
        *((("shuffle", mixing.words),) if mixing is not None else ()),
        ("global batch", f"{config.global_batch} ({how})"),
        *((("idle", idle.partition(":")[0]),) if idle is not None else ()),
        ("length", length),
        ("run directory", _short(opened.run_dir.path)),
    )


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
