"""All settings with their defaults and a line on each: `shoal settings`."""

from __future__ import annotations

import typing
from typing import Any, Literal

from pydantic import BaseModel

from shoal.core.aliases import said_of, setting_meant_by
from shoal.core.config import Config
from shoal.core.errors import ConfigError, nearest

HELP = {
    "global_batch": "samples to a step, over all workers; the script states it",
    "epochs": "length of the run in passes over the data",
    "steps": "length of the run in steps, instead of epochs",
    "seed": "decides initial weights, order of samples, dropout, augmentation",
    "grain": "samples that are computed together; the same for any number of workers",
    "passes": "grain: one pass for each grain; merged: several in one, where that is the same",
    "statistics": "what batch normalisation looks at: a grain, or with global the whole batch, over all workers",
    "draws": "dropout by sample, so that grains may share a pass, or by grain; auto: by sample where that can be told",
    "sums": "type in which gradients of grains are added up; float64 leaves no trace of their order",
    "layout": "how images lie in memory; auto tries channels_last where there are convolutions",
    "init": "initial parameters: keep what the script built, or the name of an initialisation",
    "clip.norm": "clip gradients to this global norm",
    "clip.value": "clip each gradient to plus or minus this",
    "clip.weights": "keep weights in this range after each step: [low, high]",
    "precision": "float32, or bf16 autocast",
    "eval_every": "evaluate this often: '1 epoch', '500 steps', never",
    "strategy": "how the work is distributed",
    "workers": "processes that compute gradients; never changes the result",
    "servers": "processes that hold parameters, for strategies that use them",
    "weights": "shares of the batch, one for each worker: [3, 1]",
    "balance": "auto: shares of the batch follow the measured speed of the workers, unless weights are stated",
    "accumulate": "compute each worker's share in this many parts, to save memory",
    "eval_batch": "samples to a pass of an evaluation",
    "threads": "threads of each worker",
    "device": "where workers compute",
    "compare": "whether workers compare samples, losses and parameters, which must be the same on all of them",
    "checkpoint.every": "save this often: '1 epoch', '50 steps', never",
    "checkpoint.keep_last": "newest checkpoints to keep",
    "checkpoint.keep_best": "best checkpoints to keep",
    "checkpoint.monitor": "the value that says which checkpoint is best",
    "checkpoint.mode": "whether the best value is the lowest (min) or the highest (max)",
    "checkpoint.mirror": "--mirror; a second place for checkpoints, from which the run can go on: a path, s3://…, hdfs://…",
    "checkpoint.mirror_wait_s": "how long the end of a run waits for the last copy",
    "comm.backend": "shared memory, gloo, both by hosts, or NCCL",
    "comm.bucket_mib": "gradients are reduced in buckets of this size (MiB)",
    "comm.timeout_s": "seconds after which a worker that does not answer is an error",
    "comm.codec": "how gradients and differences are packed: none, bf16, fp16, int8, topk:0.01, powersgd:4, auto",
    "comm.encrypt": "between hosts, auto encrypts all but gloo's ports; on refuses those; off: not even servers",
    "loader.shuffle": "draw a new order of samples for each epoch",
    "loader.processes": "processes of each worker that read samples",
    "loader.once": "off accepts a stream that gives every worker other samples: nothing then says that each came once",
    "loader.memory_mib": "memory for mixing prepared shards and reading ahead, over all workers; decides their order",
    "loader.cache_mib": "disk on which blocks of remote shards are kept, on each host; 0: none",
    "loader.cache_dir": "where they are kept; ~/.cache/shoal/blocks unless stated",
    "loader.corrupt": "a damaged row group of a prepared data set: stop, or skip its samples",
    "loader.deadline_s": "seconds after which a read of a prepared data set that fails again and again ends the run",
    "loader.stall_s": "seconds without an answer after which such a read is tried a second time beside the first",
    "elastic.lease_s": "seconds without a sign of life after which a worker is put out (frozen, cut off)",
    "elastic.hang_s": "seconds without progress after which a worker is put out; without any sign of life, a server",
    "elastic.hang_steps": "and no earlier than after so many median steps",
    "elastic.start_s": "seconds without progress that a worker may take to its first step (imports, compilation)",
    "elastic.max_restarts": "workers that may be replaced after a fault",
    "elastic.max_preemptions": "workers that may be replaced after they were told to go (SIGTERM)",
    "elastic.min_workers": "the run waits for so many, and ends when it cannot have them",
    "elastic.max_workers": "no more take part",
    "elastic.size": "auto: more or fewer workers, within these bounds, by what sending costs (incremental)",
    "elastic.on_error": "an exception in the script: stop the run, or continue without that worker",
    "elastic.pace_s": "seconds to wait before each step: a drill slows a short run down by it, to have time to hurt it",
    "evaluator.enabled": "evaluate in a process of its own, which follows the checkpoints and exports the best",
    "evaluator.every_s": "seconds from the beginning of one of its evaluations to that of the next, at least",
    "evaluator.patience_s": "seconds without a sign of life after which it is not waited for at the end of the run",
    "server.consistency": "how far workers may drift apart: bsp, ssp:4 (so many tasks ahead of the slowest), asp",
    "server.placement": "which server holds what: even, or a placement of your own",
    "server.plugins": "modules that servers and workers import: with consistencies and placements of your own",
    "server.replicas": "copies of each server: with 2, the loss of one loses nothing",
    "server.snapshot_s": "seconds between checkpoints where servers have no copy: what a run without one goes back to",
    "asynchronous.damping": "an update that is s commits old counts 1 / (1 + s)",
    "asynchronous.mixing": "elastic averaging: how far local and central weights move towards each other at each task",
    "incremental.h": "local steps between two averages: a number, growing, or auto (from what sending costs)",
    "incremental.rho": "how finely a round is cut, as a part of it; 1: fixed parts, the same bits every time",
    "incremental.outer": "what is done with the average: plain, momentum, nesterov (DiLoCo)",
    "incremental.outer_lr": "rate of the outer optimizer; 1 for plain and 0.7 else unless stated; with Adam, try 1.4",
    "incremental.outer_momentum": "momentum of the outer optimizer",
    "hybrid.inner": "strategy within a team",
    "hybrid.outer": "strategy between teams: incremental, allreduce, parameter-server or async",
    "hybrid.team": "workers to a team: host (all of one host), or a number",
    "tensorboard": "write curves for TensorBoard into the run directory",
    "run_dir": "where the run is kept; the same directory again resumes it",
}
EXAMPLES = (
    ("all of them", "shoal settings"),
    ("those about checkpoints", "shoal settings checkpoint"),
    ("what another framework calls so", "shoal settings batch_size"),
)
COMMON = (
    "epochs",
    "eval_every",
    "clip.norm",
    "accumulate",
    "precision",
    "weights",
    "checkpoint.every",
    "comm.backend",
)


def default_of(name: str) -> str:
    """The default of a setting, as one would write it; empty where there is none."""
    group, _, inner = name.partition(".")
    field = Config.model_fields[group]
    value: Any = getattr(field.default, inner) if inner else field.default
    if value is None or field.is_required():
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def choices_of(name: str) -> list[str]:
    """The words that a setting may be, where they are few."""
    group, _, inner = name.partition(".")
    annotation: Any = Config.model_fields[group].annotation
    if inner and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        annotation = annotation.model_fields[inner].annotation
    return [str(word) for word in typing.get_args(annotation)] if typing.get_origin(annotation) is Literal else []


def about(word: str) -> list[str]:
    """The settings that `word` is about: by their names, by what they do, or by what others call them."""
    sought = word.lower().replace("-", "_")
    meant = setting_meant_by(word, HELP)
    found = [name for name, text in HELP.items() if sought in name or sought in text.lower() or name == meant]
    if not found:
        raise ConfigError(f"no setting is about {word!r}: {said_of(word) or nearest(word, HELP)}")
    return sorted(found, key=lambda name: (name != meant, sought not in name))


def print_settings(word: str | None = None) -> None:
    """A table of all settings, or of those that `word` is about, on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting", style="bold", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("what it does")
    for name in HELP if word is None else about(word):
        text = HELP[name]
        choices = choices_of(name)
        told = all(word in text for word in choices)
        table.add_row(name, default_of(name), Text(text if told else f"{text} ({', '.join(choices)})"))
    console = Console(highlight=False)
    console.print(table)
    if word is not None and (said := said_of(word)) is not None:
        console.print(f"{word}: {said}", soft_wrap=True, markup=False)
    console.print("Give them with --set name=value, in the file of --config, or in shoal.Trainer(...).")
