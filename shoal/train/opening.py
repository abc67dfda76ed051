"""Before the first step: the workers find each other and agree on where, what and how they train.

Nothing is written before everything that can be checked has been checked, so that a mistake leaves no run directory:
first `open_run`, then whoever calls it builds what may still fail, then `claim`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.comm.group import Group
from shoal.comm.select import make_group
from shoal.core.config import Config, flatten
from shoal.core.errors import ConfigError, UserError
from shoal.core.world import Member, View, World
from shoal.launch.rundir import RunDir, default_path
from shoal.launch.session import Session
from shoal.train.cutting import Cutting, choose, why_separate
from shoal.train.initialise import initialise
from shoal.train.layout import choose_layout
from shoal.train.spec import RunSpec

_PROBE_SAMPLES = 8


@dataclass(frozen=True)
class Opened:
    """What the workers agreed on. `config` is complete: the grain is a number."""

    world: World
    group: Group
    view: View
    run_dir: RunDir
    resume_dir: Path  # by which the run goes on: the run directory, or that of the script's first fit()
    config: Config
    cutting: Cutting


def open_run(spec: RunSpec, session: Session, number: int, closing: contextlib.ExitStack) -> Opened:
    """Form the group and agree. Writes nothing. Collective. What must be closed goes to `closing`."""
    config = spec.config
    world = _place(session.world, config.device)
    group = make_group(world, session.control, config.comm.backend, session.rendezvous, config.comm.timeout_s, number)
    closing.callback(group.close)
    initialise(spec.program.model, config.init, config.seed)
    _compare(spec, group)
    resume_dir, run_dir = _locate(spec, session, number, group)
    config = _keep_choices(config, run_dir)
    cutting = _decide(spec, config, group)
    passes = "merged" if cutting.merged else "grain"
    chosen = {"grain": cutting.grain, "passes": passes, "layout": _decide_layout(spec, config, group)}
    config = config.model_copy(update={**chosen, "run_dir": str(run_dir.path)})
    me = json.dumps([session.world.rank, socket.gethostname(), os.getpid()]).encode()
    members = tuple(Member("worker", *json.loads(word)) for word in group.gather_bytes(me, "greeting"))
    return Opened(world, group, View(number, members), run_dir, resume_dir, config, cutting)


def claim(opened: Opened, session: Session, closing: contextlib.ExitStack) -> None:
    """Make the run directory, or take over one that belongs to this run; it is held until `closing` is closed.

    Collective, so that nobody reads a directory that another worker is about to refuse.
    """
    if session.world.is_first:
        closing.enter_context(opened.run_dir.locked())
        opened.run_dir.create(opened.config, session.script)
        session.report({"type": "started", "run_dir": str(opened.run_dir.path), "resume_dir": str(opened.resume_dir)})
    opened.group.gather_bytes(b"", "claiming the run directory")


def _place(world: World, device: str) -> World:
    """Where this worker computes: a GPU of its own where there are any, unless the user says otherwise."""
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError("device=cuda, but PyTorch sees no GPU here: use --set device=cpu")
    if device == "cpu" or not available:
        return world
    return replace(world, device=f"cuda:{world.rank % torch.cuda.device_count()}")


def _locate(spec: RunSpec, session: Session, number: int, group: Group) -> tuple[Path, RunDir]:
    """The first worker chooses the run directory; a script's second fit() gets one below that of its first.

    A directory that the user's own code states for this fit() is that, however many came before. Returns the
    directory by which the run goes on, too.
    """
    given = spec.config.run_dir
    stated_outside = any(settings.get("run_dir") for _, settings in session.layers)
    if given and not stated_outside:
        resume_dir = path = Path(given)
    else:
        resume_dir = Path(session.run_dir or given or _unused(default_path(session.script, datetime.now())))
        path = resume_dir / f"fit-{number + 1}" if number > 0 else resume_dir
    word = json.dumps([str(resume_dir.absolute()), str(path.absolute())]).encode()
    first, chosen = json.loads(group.gather_bytes(word, "agreeing on the run directory")[0])
    if not given or stated_outside:
        session.run_dir = first
    return Path(first), RunDir(Path(chosen))


def _unused(path: Path) -> Path:
    """`path`, or one like it that is not there: two runs may begin in the same second."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _keep_choices(config: Config, run_dir: RunDir) -> Config:
    """A run that goes on keeps what was chosen for it when it began."""
    if not run_dir.exists:
        return config
    saved = run_dir.saved()
    kept: dict[str, Any] = {
        name: saved[name] for name in ("grain", "passes", "layout") if getattr(config, name) == "auto" and name in saved
    }
    return config.model_copy(update=kept)


def _decide(spec: RunSpec, config: Config, group: Group) -> Cutting:
    """The first worker looks at the model; its word holds for all."""
    word = b""
    if group.rank == 0:
        cutting = decide_cutting(spec, config)
        word = json.dumps([cutting.grain, cutting.merged, cutting.why]).encode()
    return Cutting(*json.loads(group.gather_bytes(word, "agreeing on the grain")[0]))


def _decide_layout(spec: RunSpec, config: Config, group: Group) -> str:
    """The first worker tries it; its word holds for all."""
    word = b""
    if group.rank == 0:
        few = spec.train.fetch(np.arange(min(_PROBE_SAMPLES, len(spec.train)), dtype=np.int64), 0, config.seed)
        word = choose_layout(config.layout, spec.program.model, spec.program.objective, few).encode()
    return group.gather_bytes(word, "agreeing on the layout")[0].decode()


def decide_cutting(spec: RunSpec, config: Config) -> Cutting:
    """Settle the grain, by trying a few samples on the model where the user left it open."""
    separate = None
    if config.passes == "auto":
        count = min(_PROBE_SAMPLES, len(spec.train))
        half = max(1, count // 2)
        indices = np.arange(count, dtype=np.int64)
        both = spec.train.fetch(indices, 0, config.seed)
        parts = [spec.train.fetch(part, 0, config.seed) for part in (indices[:half], indices[half:]) if len(part)]
        separate = why_separate(spec.program.model, spec.program.objective, parts, both)
    elif config.passes == "grain":
        separate = "passes=grain"
    return choose(config.grain, config.passes, config.global_batch, separate)


def _compare(spec: RunSpec, group: Group) -> None:
    """All workers must be about to run the same program on the same data."""
    model = spec.program.model
    shapes = [[name, list(p.shape), str(p.dtype), p.requires_grad] for name, p in model.named_parameters()]
    mine = {
        "samples of training data": len(spec.train),
        "samples of test data": len(spec.test) if spec.test is not None else 0,
        "parameters (a digest of names and shapes)": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:12],
        **{f"the setting {name}": value for name, value in flatten(spec.config.to_json()).items()},
    }
    everyone = [json.loads(word) for word in group.gather_bytes(json.dumps(mine).encode(), "comparing programs")]
    for rank, theirs in enumerate(everyone):
        for name, value in theirs.items():
            if value != everyone[0][name]:
                raise UserError(
                    f"worker {rank} differs from worker 0 in {name}: {value} against {everyone[0][name]}. "
                    "The script must build the same model, data and settings on every worker"
                )
