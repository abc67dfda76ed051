"""Before the first step: the workers agree on where, what and how they train; who comes later is told.

Nothing is written before everything that can be checked has been checked, so that a mistake leaves no run directory:
first `open_run`, then whoever calls it builds what may still fail, then `claim`. A worker that has built another
program than the others is no mistake of that kind: the run directory tells of it as of any other fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from shoal.comm.group import Group
from shoal.core.config import Config, flatten
from shoal.core.errors import ConfigError, PeerDiffers, RunDirError, ShoalError, UserError
from shoal.core.world import Member
from shoal.launch.rundir import RunDir, new_path
from shoal.launch.session import Session
from shoal.train.comparing import compares, samples_digest
from shoal.train.cutting import A_HANDFUL, Cutting, Look, choose, has_batch_norm, look_at
from shoal.train.draws import Few
from shoal.train.initialise import initialise
from shoal.train.layout import choose_layout
from shoal.train.mirrored import RunMirror
from shoal.train.place import Place
from shoal.train.spec import RunSpec

_PROBE_SAMPLES = 8
_TRIAL_SAMPLES = 5  # in groups of two and three
_LOCK_S = 10.0  # for the last first worker, which was killed, to be gone
_READ = (
    "the first samples of the training data (a digest; a sample must depend on nothing but the seed, the epoch and its "
    "number, or use --set compare=off)"
)
_CHOICES = ("grain", "passes", "draws", "layout")


@dataclass(frozen=True)
class Opened:
    """What the workers agreed on, for the whole of the run. `config` is complete: the grain is a number. `program` is
    what all of them must have in common."""

    run_dir: RunDir
    resume_dir: Path  # by which the run goes on: the run directory, or that of the script's first fit()
    config: Config
    cutting: Cutting
    program: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "run_dir": str(self.run_dir.path),
            "resume_dir": str(self.resume_dir),
            "config": self.config.to_json(),
            "cutting": self.cutting.to_json(),
            "program": dict(self.program),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Opened:
        return cls(
            RunDir(Path(data["run_dir"])),
            Path(data["resume_dir"]),
            Config.model_validate(data["config"]),
            Cutting.from_json(data["cutting"]),
            data["program"],
        )


def open_run(spec: RunSpec, session: Session, number: int, place: Place) -> Opened:
    """Agree with all others, of whom nobody has any state yet. Writes nothing, unless a worker runs another program
    than the others: then that one raises `UserError`, and the others `PeerDiffers`. Collective."""
    config, group = spec.config, place.group
    if place.is_first and not session.home:
        raise ShoalError(
            "no worker is left on the host of the run directory, and none elsewhere has the model: run the same "
            "command again to go on from the last checkpoint"
        )
    initialise(spec.program.model, config.init, config.seed)
    program = describe(spec, group.size > 1)
    odd = odd_one([json.loads(word) for word in group.gather_bytes(json.dumps(program).encode(), "comparing programs")])
    resume_dir, run_dir = _locate(spec, session, number, group)
    mirror = RunMirror.of(config, number, run_dir) if place.is_first else None
    owner = mirror.look() if mirror is not None else None
    config = _keep_choices(config, run_dir, group, owner.saved if owner is not None else {})
    growing = spec.growing
    if growing is not None and "auto" in (config.passes, config.layout):
        place.wait_for_first(growing.sampled, "waiting for the first file")
    cutting = _decide(spec, config, place)
    chosen = {**cutting.settings, "layout": _decide_layout(spec, config, group)}
    config = config.model_copy(update={**chosen, "run_dir": str(run_dir.path)})
    opened = Opened(run_dir, resume_dir, config, cutting, program)
    if odd is not None:
        _refuse(odd, opened, session, place)
    if mirror is not None:
        mirror.check(owner, config, session.script)
    return opened


def join_run(spec: RunSpec, session: Session, told: Mapping[str, Any]) -> Opened:
    """Be told what the others agreed on before this worker came. Raises `UserError` where it runs another program."""
    opened = Opened.from_json(told)
    odd = odd_one([opened.program, describe(spec, _READ in opened.program)])
    if odd is not None:
        raise UserError(odd.words("this worker", "the others"))
    _remember(spec, session, str(opened.resume_dir))
    return opened


def greet(place: Place) -> tuple[Member, ...]:
    """The members of the view. Where their processes are not known from elsewhere they tell each other. Collective."""
    members = place.view.members
    if all(member.pid for member in members):
        return members
    me = json.dumps([place.world.rank, socket.gethostname(), os.getpid()]).encode()
    return tuple(Member("worker", *json.loads(word)) for word in place.group.gather_bytes(me, "greeting"))


def claim(opened: Opened, session: Session, closing: contextlib.ExitStack, place: Place) -> None:
    """Make the run directory, or take over one that belongs to this run; it is held until `closing` is closed.

    Collective, so that nobody reads a directory that another worker is about to refuse.
    """
    if place.keeps_record:
        # where this is not the run's first view, a first worker that was put out may not be gone yet
        hold(opened, session, closing, _LOCK_S if place.view.number > 1 else 0.0)
        opened.run_dir.create(opened.config, session.script)
        tell_started(opened, session, begun=False)
    place.group.gather_bytes(b"", "claiming the run directory")


def hold(opened: Opened, session: Session, closing: contextlib.ExitStack, patience_s: float = 0.0) -> None:
    """Lock the run directory. Who takes over from a first worker that was killed may have to wait for its end."""
    until = time.monotonic() + patience_s
    while True:
        try:
            closing.enter_context(opened.run_dir.locked())
            return
        except RunDirError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.02)


def begin(opened: Opened, session: Session) -> None:
    """Where this worker keeps the record: all is built and loaded, and the run directory is this run's from now on."""
    opened.run_dir.keep(opened.config, session.script)
    tell_started(opened, session)


def tell_started(opened: Opened, session: Session, begun: bool = True) -> None:
    """Let the launcher know where the run is kept; once it has `begun`, an evaluator can follow it."""
    message = {"type": "started", "run_dir": str(opened.run_dir.path), "resume_dir": str(opened.resume_dir)}
    evaluator = opened.config.evaluator
    follows = begun and evaluator.enabled
    session.report({**message, "fit": session.fits - 1, "evaluator": evaluator.model_dump() if follows else None})


def _locate(spec: RunSpec, session: Session, number: int, group: Group) -> tuple[Path, RunDir]:
    """The first worker chooses the run directory; a script's second fit() gets one below that of its first.

    A directory that the user's own code states for this fit() is that, however many came before. Returns the
    directory by which the run goes on, too.
    """
    given = spec.config.run_dir
    if given and not _stated_outside(session):
        resume_dir = path = Path(given)
    else:
        resume_dir = Path(session.run_dir or given or new_path(session.script))
        path = resume_dir / f"fit-{number + 1}" if number > 0 else resume_dir
    word = json.dumps([str(resume_dir.absolute()), str(path.absolute())]).encode()
    first, chosen = json.loads(group.gather_bytes(word, "agreeing on the run directory")[0])
    _remember(spec, session, first)
    return Path(first), RunDir(Path(chosen))


def _stated_outside(session: Session) -> bool:
    return any(settings.get("run_dir") for _, settings in session.layers)


def _remember(spec: RunSpec, session: Session, resume_dir: str) -> None:
    """The script's later fit() calls are kept below the first one's directory, unless they state one themselves."""
    if not spec.config.run_dir or _stated_outside(session):
        session.run_dir = resume_dir


def _keep_choices(config: Config, run_dir: RunDir, group: Group, elsewhere: Mapping[str, Any]) -> Config:
    """A run that goes on keeps what was chosen for it when it began; the first worker looks it up, here or in what is
    known of the run `elsewhere`."""
    kept: dict[str, Any] = {}
    if group.rank == 0:
        saved = run_dir.saved() if run_dir.exists else elsewhere
        kept = {name: saved[name] for name in _CHOICES if getattr(config, name) == "auto" and name in saved}
        if config.draws == "grain" != saved.get("draws"):  # passes were chosen for draws by sample
            kept.pop("passes", None)
    word = group.gather_bytes(json.dumps(kept).encode(), "keeping earlier choices")[0]
    return config.model_copy(update=json.loads(word))


def _decide(spec: RunSpec, config: Config, place: Place) -> Cutting:
    """The first worker looks at the model; its word holds for all."""
    word, group = b"", place.group
    if group.rank == 0:
        cutting = decide_cutting(spec, config, place.world.device)
        word = json.dumps(cutting.to_json()).encode()
    return Cutting.from_json(json.loads(group.gather_bytes(word, "agreeing on the grain")[0]))


def _decide_layout(spec: RunSpec, config: Config, group: Group) -> str:
    """The first worker tries it; its word holds for all."""
    if config.layout != "auto":
        return config.layout
    word = b""
    if group.rank == 0:
        train = spec.train.sampled()
        few = train.fetch(np.arange(min(_PROBE_SAMPLES, len(train)), dtype=np.int64), 0, config.seed)
        word = choose_layout(config.layout, spec.program.model, spec.program.objective, few).encode()
    return group.gather_bytes(word, "agreeing on the layout")[0].decode()


def decide_cutting(spec: RunSpec, config: Config, device: str = "cpu") -> Cutting:
    """Settle the grain, by trying a few samples on the model where the user left it open."""
    grouped, combined = spec.train.grouped, config.statistics == "global"
    if grouped is not None and config.passes == "merged":
        raise ConfigError(f"passes=merged, but {grouped}, which must see one grain at a time: leave passes out")
    look = Look(grouped, None, normed=has_batch_norm(spec.program.model))
    if grouped is None and (config.passes == "auto" or config.draws != "grain"):
        train = spec.train.sampled()
        indices = np.arange(min(_TRIAL_SAMPLES, len(train)), dtype=np.int64)
        half = max(1, 2 * len(indices) // 5)
        both, *parts = (
            Few(some, train.fetch(some, 0, config.seed))
            for some in (indices, indices[:half], indices[half:])
            if len(some)
        )
        look = look_at(spec.program.model, spec.program.objective, parts, both, combined)
    look = _by_grain(look, config, device)
    if config.passes == "grain":
        drawn = look.draws if look.draws is not None and look.draws.some else None
        look = replace(look, separate="passes=grain", draws=drawn)
    if combined and look.separate is not None and config.passes != "merged":
        raise ConfigError(
            f"statistics=global, for which a worker runs all of its samples in one pass, but {look.separate}: that "
            "must see one grain at a time. Use statistics=grain"
        )
    announced = config.elastic.max_workers or A_HANDFUL
    cutting = choose(config.grain, config.passes, config.global_batch, look, announced)
    if combined:
        return replace(cutting, why="batch normalisation looks at the whole batch (statistics=global)")
    return cutting


def _by_grain(look: Look, config: Config, device: str) -> Look:
    """The same where draws are not told apart by sample, because that is not wished or not possible."""
    if config.draws == "sample" and look.draws is None and look.separate is not None:
        raise ConfigError(f"draws=sample, but {look.separate}: leave draws out")
    if look.draws is None or not look.draws.some:
        return look
    if config.draws == "grain":
        return replace(look, separate=look.separate or "draws=grain", draws=None)
    if device != "cpu":
        why = f"draws are told apart by sample on CPUs only, not on {device}"
        return replace(look, separate=look.separate or why, draws=None)
    return look


def describe(spec: RunSpec, read: bool) -> dict[str, Any]:
    """What all workers must have in common, as plain values by name. `read`: what some samples are is among it."""
    model, growing = spec.program.model, spec.growing
    shapes = [[name, list(p.shape), str(p.dtype), p.requires_grad] for name, p in model.named_parameters()]
    return {
        **_digests(spec),  # before lengths, which differ, too, where workers divide a stream
        "samples of training data": str(growing.place) if growing is not None else len(spec.train),
        "training data (a digest of its manifest)": spec.train.mark,
        **(_first_samples(spec) if read else {}),
        "samples of test data": len(spec.test) if spec.test is not None else 0,
        "parameters (a digest of names and shapes)": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:12],
        **{f"the setting {name}": value for name, value in flatten(spec.config.to_json()).items()},
    }


def _first_samples(spec: RunSpec) -> dict[str, str]:
    """Of what a worker reads, where that must be the same on all of them."""
    if not compares(spec.config, spec.train):
        return {}
    return {_READ: samples_digest(spec.train, spec.config)}


def _digests(spec: RunSpec) -> dict[str, str | None]:
    """Of data that was read from a stream, whose length says little."""
    if spec.config.loader.once == "off":
        return {}
    sources = {"training": spec.train, "test": spec.test}
    what = "a digest of the stream, which must give each worker all of them, in one order, or use --once off"
    return {
        f"the samples of the {kind} data ({what})": source.digest
        for kind, source in sources.items()
        if source is not None
    }


@dataclass(frozen=True)
class Odd:
    """The worker with this `rank` differs from worker `whom`: in `what`."""

    rank: int
    whom: int
    what: str

    def words(self, who: str, whom: str) -> str:
        return (
            f"{who} differs from {whom} in {self.what}. "
            "The script must build the same model, data and settings on every worker"
        )


def odd_one(programs: Sequence[Mapping[str, Any]]) -> Odd | None:
    """Who is about to run another program than most, by what `describe` says on each worker; None where all agree.
    Where there is no majority, the first worker is right."""
    for name in programs[0]:
        values = [json.dumps(one.get(name)) for one in programs]
        common = Counter(values).most_common(1)[0][0]
        rank = next((rank for rank, value in enumerate(values) if value != common), None)
        if rank is not None:
            whom = values.index(common)
            return Odd(rank, whom, f"{name}: {programs[rank].get(name)} against {programs[whom].get(name)}")
    return None


def _refuse(odd: Odd, opened: Opened, session: Session, place: Place) -> NoReturn:
    """The run is over before its first step, and leaves a directory that tells why. Collective."""
    members = greet(place)
    with contextlib.ExitStack() as closing:
        claim(opened, session, closing, place)
    words = odd.words(str(members[odd.rank]), str(members[odd.whom]))
    raise UserError(words) if place.world.rank == odd.rank else PeerDiffers(words)
