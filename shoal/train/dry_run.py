"""What would happen: the resolved configuration, the model, who computes what, and the memory it takes."""

from __future__ import annotations

import json
from typing import Any

import torch
import yaml

from shoal.core.cursor import Batches, Cursor
from shoal.strategies.objective import batch_size
from shoal.train.distribution import distribution, planned_view
from shoal.train.header import mixing_of
from shoal.train.idle import idle_workers
from shoal.train.opening import decide_cutting
from shoal.train.spec import RunSpec

_MODEL_ROWS = 40


def plan(spec: RunSpec) -> dict[str, Any]:
    """Everything that a dry run shows, as plain values."""
    cutting = decide_cutting(spec, spec.config)
    config = spec.config.model_copy(update=cutting.settings)
    batches = Batches(len(spec.train.sampled()), config.global_batch, cutting.grain)
    first = batches.at(Cursor())
    weights = config.share_weights
    mixing = mixing_of(spec, config, batches)
    shares = [sum(g.samples for g in first.share(rank, weights)) for rank in range(config.workers)]
    idle = idle_workers(spec.strategy, batches, cutting, weights)
    return {
        "config": config.to_json(),
        "distribution": dict(distribution(config, spec.strategy, planned_view(config.workers))),
        "grain_because": cutting.why,
        "model": _layers(spec),
        "samples": batches.samples,
        "steps_per_epoch": batches.per_epoch,
        "total_steps": config.steps or (config.epochs or 0) * batches.per_epoch,
        "shares": shares,
        **({"idle": idle} if idle is not None else {}),
        "memory": memory_estimate(spec, shares, cutting.merged, cutting.grain),
        **({"shuffle": {"quality": mixing.quality, "words": mixing.words}} if mixing is not None else {}),
    }


def memory_estimate(spec: RunSpec, shares: list[int], merged: bool, grain: int) -> dict[str, int]:
    """Bytes that one worker needs: exact for parameters and gradients, counted on a sample for activations."""
    model = spec.program.model
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    in_pass = max(shares) if merged else min(grain, max(shares))
    in_pass = -(-in_pass // spec.config.accumulate) if merged else in_pass
    activations = _activation_bytes(spec) * in_pass
    optimizer = _optimizer_slots(spec) * gradients
    return {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "total": parameters + 2 * gradients + optimizer + activations,  # gradients also lie in buckets
    }


def _activation_bytes(spec: RunSpec) -> int:
    """What backward keeps for one sample, counted by running a few."""
    import numpy as np

    train = spec.train.sampled()
    count = min(4, len(train))
    batch = train.fetch(np.arange(count, dtype=np.int64), 0, spec.config.seed)
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    own = {p.untyped_storage().data_ptr() for p in spec.program.model.parameters()}
    buffers = {name: buffer.clone() for name, buffer in spec.program.model.named_buffers()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        spec.program.objective(spec.program.model, batch)
    for name, buffer in spec.program.model.named_buffers():
        buffer.data.copy_(buffers[name])
    return sum(size for address, size in kept.items() if address not in own) // batch_size(batch)


def _optimizer_slots(spec: RunSpec) -> int:
    """How many tensors of a parameter's size the optimizer keeps, found by a step on a toy parameter."""
    given = spec.program.optimizer
    if isinstance(given, torch.optim.Optimizer):
        return 2
    parameter = torch.nn.Parameter(torch.zeros(7, 3))
    optimizer = given([parameter])
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return sum(1 for v in optimizer.state[parameter].values() if isinstance(v, torch.Tensor) and v.numel() == 21)


def _layers(spec: RunSpec) -> list[dict[str, Any]]:
    rows = []
    for name, module in spec.program.model.named_modules():
        own = list(module.parameters(recurse=False))
        if own:
            shapes = ", ".join("x".join(map(str, p.shape)) for p in own)
            trained = any(p.requires_grad for p in own)
            count = sum(p.numel() for p in own)
            row = {"name": name or "(model)", "kind": type(module).__name__, "shapes": shapes, "parameters": count}
            rows.append({**row, "trained": trained})
    return rows


def _readable(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.4g} GiB"


def print_dry_run(spec: RunSpec, as_json: bool) -> None:
    """Show the plan on standard output, for a person or as JSON."""
    # not needed by those who train
    from rich.console import Console
    from rich.table import Table

    shown = plan(spec)
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    console = Console(highlight=False)
    console.print("[bold]Configuration[/]")
    console.print(yaml.safe_dump(shown["config"], sort_keys=False).rstrip())
    table = Table(title="Model", title_justify="left", title_style="bold", box=None)
    for heading in ("name", "kind", "shapes"):
        table.add_column(heading, overflow="fold")
    table.add_column("parameters", justify="right")
    rows = shown["model"]
    for row in rows[:_MODEL_ROWS]:
        table.add_row(
            row["name"],
            row["kind"],
            row["shapes"],
            f"{row['parameters']:,}" + ("" if row["trained"] else " (frozen)"),
        )
    if len(rows) > _MODEL_ROWS:
        table.add_row(f"… {len(rows) - _MODEL_ROWS} more", "", "", "")
    table.add_row("total", "", "", f"{sum(p.numel() for p in spec.program.model.parameters()):,}")
    console.print(table)
    config = shown["config"]
    console.print("\n[bold]Distribution[/]")
    for name, value in shown["distribution"].items():
        console.print(f"  {name}: {value}", markup=False)
    console.print(
        f"\n[bold]Batch[/]  {config['global_batch']} samples a step, grains of {config['grain']}, "
        f"passes {config['passes']}: {shown['grain_because']}"
    )
    for rank, share in enumerate(shown["shares"]):
        console.print(f"  worker {rank}: {share} samples of the first batch")
    if "idle" in shown:
        console.print(f"  [bold]warning[/]: {shown['idle']}")
    if "shuffle" in shown:
        console.print(f"[bold]Shuffle[/] {shown['shuffle']['words']}")
    console.print(f"[bold]Length[/] {shown['total_steps']} steps, {shown['steps_per_epoch']} an epoch")
    memory = {name: _readable(size) for name, size in shown["memory"].items()}
    console.print("[bold]Memory[/] of one worker, about: " + ", ".join(f"{k} {v}" for k, v in memory.items()))
    console.print("\nNothing was trained and nothing was written (--dry-run).")
