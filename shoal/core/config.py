"""The configuration of a run: one frozen value, validated where it is made, printed and saved whole.

Flags, file and script use the same names. `resolve` lays them over each other: flags win over the file, the file
over the script, the script over the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from shoal.core.aliases import hint
from shoal.core.errors import ConfigError, nearest
from shoal.core.length import Length

Settings = dict[str, Any]


def _switch(value: object) -> object:
    """YAML takes the words on and off for truth values."""
    return ("off", "on")[value] if isinstance(value, bool) else value


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Clip(_Frozen):
    """What is clipped at each step: gradients by global norm or by value, weights to a range."""

    norm: Annotated[float, Field(gt=0)] | None = None
    value: Annotated[float, Field(gt=0)] | None = None
    weights: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _range(self) -> Clip:
        if self.weights is not None and self.weights[0] >= self.weights[1]:
            raise ValueError(f"weights={self.weights}: the lower end must be below the upper end")
        return self


class CheckpointSettings(_Frozen):
    """When checkpoints are written, which of them are kept, and where they are copied to."""

    every: Length | Literal["never"] = Length(1, "epochs")
    keep_last: Annotated[int, Field(ge=1)] = 2
    keep_best: Annotated[int, Field(ge=0)] = 1
    monitor: str = "test_loss"
    mode: Literal["min", "max"] = "min"
    mirror: str | None = None  # a path, s3://…, hdfs://…: a second place, from which the run can go on
    mirror_wait_s: Annotated[float, Field(ge=0)] = 300.0  # for the last copy, when the run has ended

    @model_validator(mode="after")
    def _mirrored(self) -> CheckpointSettings:
        if self.mirror is not None and self.every == "never":
            raise ValueError(
                f"mirror={self.mirror} (--mirror) copies checkpoints, but every=never writes none: "
                "state how often to save, such as checkpoint.every='1 epoch', or leave the mirror out"
            )
        return self


class CommSettings(_Frozen):
    """How workers talk to each other."""

    backend: Literal["auto", "shm", "gloo", "hierarchical", "nccl"] = "auto"
    bucket_mib: Annotated[float, Field(gt=0)] = 4.0
    timeout_s: Annotated[float, Field(gt=0)] = 300.0
    codec: str = "none"
    encrypt: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = "auto"


class ServerSettings(_Frozen):
    """How parameter servers keep workers in step, what lies where, and how they survive."""

    consistency: str = "bsp"
    placement: str = "even"
    plugins: tuple[str, ...] = ()  # modules with consistencies and placements of one's own
    replicas: Annotated[int, Field(ge=1, le=2)] = 1
    snapshot_s: Annotated[float, Field(gt=0)] = 30.0


class AsynchronousSettings(_Frozen):
    """What makes asynchronous updates converge."""

    damping: bool = True  # an update that is s commits old counts 1 / (1 + s)
    mixing: Annotated[float, Field(gt=0, le=1)] | None = None  # elastic averaging: how far local and central ones meet


class IncrementalSettings(_Frozen):
    """Local steps between two averages, and what is done with the average."""

    h: Annotated[int, Field(ge=1)] | Literal["auto", "growing"] = "auto"
    rho: Annotated[float, Field(gt=0, le=1)] = 0.25
    outer: Literal["plain", "momentum", "nesterov"] = "plain"
    outer_lr: Annotated[float, Field(gt=0)] | None = None
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9


class HybridSettings(_Frozen):
    """One strategy within a team of workers, another between the teams."""

    inner: str = "allreduce"
    outer: str = "incremental"
    team: Annotated[int, Field(ge=1)] | Literal["host"] = "host"


class ElasticSettings(_Frozen):
    """How a run survives: when a worker counts as lost, and what follows."""

    lease_s: Annotated[float, Field(ge=0.5)] = 2.0
    hang_s: Annotated[float, Field(gt=0)] = 60.0
    hang_steps: Annotated[float, Field(gt=0)] = 10.0
    start_s: Annotated[float, Field(gt=0)] = 600.0
    max_restarts: Annotated[int, Field(ge=0)] = 10
    max_preemptions: Annotated[int, Field(ge=0)] = 100
    min_workers: Annotated[int, Field(ge=1)] = 1
    max_workers: Annotated[int, Field(ge=1)] | None = None
    size: Literal["fixed", "auto"] = "fixed"
    on_error: Literal["stop", "continue"] = "stop"
    pace_s: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _bounded(self) -> ElasticSettings:
        if self.size == "auto" and self.max_workers is None:
            raise ValueError(
                "size=auto lets the run choose how many workers it has, but nothing says how many that may be: "
                "give --max-workers (elastic.max_workers)"
            )
        return self


class EvaluatorSettings(_Frozen):
    """Evaluation in a process of its own, which follows the checkpoints."""

    enabled: bool = False
    every_s: Annotated[float, Field(ge=0)] = 5.0
    patience_s: Annotated[float, Field(gt=0)] = 30.0


class LoaderSettings(_Frozen):
    """How samples are read. All but the first two are for prepared data sets; `memory_mib` decides their order, too."""

    shuffle: bool = True
    processes: Annotated[int, Field(ge=0)] = 0
    once: Annotated[Literal["on", "off"], BeforeValidator(_switch)] = "on"  # off: streams need not be the same twice
    memory_mib: Annotated[float, Field(gt=0)] = 256.0
    cache_mib: Annotated[float, Field(ge=0)] = 4096.0
    cache_dir: str | None = None
    corrupt: Literal["stop", "skip"] = "stop"
    deadline_s: Annotated[float, Field(gt=0)] = 120.0
    stall_s: Annotated[float, Field(gt=0)] = 3.0


class Config(_Frozen):
    """Everything that decides what a run computes and how it is carried out."""

    # what is computed: the number of workers is not among it (law 1)
    global_batch: Annotated[int, Field(ge=1)]
    epochs: Annotated[int, Field(ge=1)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    grain: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    passes: Literal["auto", "grain", "merged"] = "auto"
    statistics: Literal["grain", "global"] = "grain"  # what batch normalisation looks at
    draws: Literal["auto", "sample", "grain"] = "auto"
    sums: Literal["auto", "float32", "float64"] = "auto"
    layout: Literal["auto", "as_given", "channels_last"] = "auto"
    init: str = "keep"
    clip: Clip = Clip()
    precision: Literal["float32", "bf16"] = "float32"
    eval_every: Length | Literal["never"] = Length(1, "epochs")
    # how it is carried out
    strategy: str = "auto"
    workers: Annotated[int, Field(ge=1)] = 1
    servers: Annotated[int, Field(ge=0)] = 0
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    balance: Annotated[Literal["off", "auto"], BeforeValidator(_switch)] = "off"
    accumulate: Annotated[int, Field(ge=1)] = 1
    eval_batch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    threads: Annotated[int, Field(ge=1)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    compare: Annotated[Literal["on", "off"], BeforeValidator(_switch)] = "on"  # what all workers must have in common
    checkpoint: CheckpointSettings = CheckpointSettings()
    comm: CommSettings = CommSettings()
    loader: LoaderSettings = LoaderSettings()
    elastic: ElasticSettings = ElasticSettings()
    evaluator: EvaluatorSettings = EvaluatorSettings()
    server: ServerSettings = ServerSettings()
    asynchronous: AsynchronousSettings = AsynchronousSettings()
    incremental: IncrementalSettings = IncrementalSettings()
    hybrid: HybridSettings = HybridSettings()
    tensorboard: bool = False
    run_dir: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"epochs={self.epochs} and steps={self.steps} both state the length of the run: give one")
        if self.weights is not None and len(self.weights) != self.workers:
            raise ValueError(
                f"weights={list(self.weights)} names {len(self.weights)} shares but workers={self.workers}: "
                "give one each"
            )
        if self.weights is not None and sum(self.weights) <= 0:
            raise ValueError("weights are all zero: nobody would compute")
        if self.statistics == "global" and self.accumulate > 1:
            raise ValueError(
                f"statistics=global and accumulate={self.accumulate}: batch normalisation over the whole batch needs "
                "all of a worker's share in one pass. Leave accumulate out (more workers take less memory each), or "
                "use statistics=grain"
            )
        if self.statistics == "global" and self.passes == "grain":
            raise ValueError(
                "statistics=global and passes=grain: batch normalisation cannot look at the whole batch where grains "
                "run one by one. Leave one of them out"
            )
        if self.evaluator.enabled and self.checkpoint.every == "never":
            raise ValueError(
                "evaluator.enabled (--evaluator) follows the checkpoints, but checkpoint.every=never writes none: "
                "state how often to save, such as checkpoint.every='1 epoch', or leave the evaluator out"
            )
        return self

    @property
    def share_weights(self) -> tuple[float, ...]:
        return self.weights if self.weights is not None else (1.0,) * self.workers

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


# What two runs may differ in and still be the same run. Everything else decides the result. (Draws by sample or by
# grain are other random numbers for the same thing: a run whose draws turn out not to be told apart can go on.)
MAY_CHANGE_ON_RESUME = frozenset(
    {
        "strategy", "workers", "servers", "weights", "balance", "accumulate", "eval_batch", "threads", "device",
        "compare", "checkpoint", "comm", "elastic", "evaluator", "loader.processes", "loader.once", "loader.cache_mib",
        "loader.cache_dir", "loader.corrupt", "loader.deadline_s", "loader.stall_s", "tensorboard", "run_dir",
        "epochs", "steps", "eval_every", "server", "asynchronous", "incremental", "hybrid", "draws",
    }
)  # fmt: skip


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"clip": {"norm": 1}}`` -> ``{"clip.norm": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def nest(flat: Mapping[str, Any]) -> Settings:
    """``{"clip.norm": 1}`` -> ``{"clip": {"norm": 1}}``."""
    nested: Settings = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        at = nested
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise ConfigError(f"{key}={value}: {parent!r} is a single value, not a group of settings")
        at[last] = value
    return nested


def known_settings() -> list[str]:
    """All settings by their dotted names."""
    names: list[str] = []
    for name, field in Config.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, BaseModel):
            names += [f"{name}.{inner}" for inner in group.model_fields]
        else:
            names.append(name)
    return names


def resolve(*layers: tuple[str, Mapping[str, Any]]) -> Config:
    """Lay settings over each other, later layers winning, and validate the whole once.

    Each layer comes with the words that name it in an error: ``("Trainer(...)", {...}), ("--config run.yaml", {...})``.
    A `None` in a layer leaves the setting to the layers below. Stating `epochs` overrides `steps` of a lower layer and
    the other way round.
    """
    merged: dict[str, Any] = {}
    source: dict[str, str] = {}
    for where, settings in layers:
        for key, value in flatten(_plain(settings)).items():
            if value is None:
                continue
            other = {"epochs": "steps", "steps": "epochs"}.get(key)
            if other in merged and source[other] != where:
                del merged[other]
            merged[key], source[key] = value, where
    known = known_settings()
    groups = {name.split(".")[0] for name in known if "." in name}
    for key in merged:
        if key not in known and key not in groups:
            raise ConfigError(f"unknown setting {key!r} in {source[key]}: {hint(key, known) or nearest(key, known)}")
    try:
        return Config.model_validate(nest(merged))
    except ValidationError as error:
        raise ConfigError(_explain(error, source)) from None


def _plain(settings: Mapping[str, Any]) -> Settings:
    """Turn setting values (`Clip(norm=1)`) into plain dictionaries."""
    return {
        key: value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
        for key, value in settings.items()
    }


def _explain(error: ValidationError, source: Mapping[str, str]) -> str:
    """One clause for each setting that is wrong: its value, where it was stated, and what it should be."""
    reasons: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for problem in error.errors():
        # the branches of a union and the positions of a tuple are no names of settings
        path = [str(part) for part in problem["loc"] if isinstance(part, str)]
        known = known_settings()
        name = next((n for n in (".".join(path[:2]), ".".join(path[:1])) if n in known), ".".join(path[:1]))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            message = f"it is missing: give it in the Trainer, in the file, or with --set {name}=..."
        reasons.setdefault(name, []).append(message[0].lower() + message[1:])
        values[name] = None if problem["type"] == "missing" else problem["input"]
    clauses = []
    for name, messages in reasons.items():
        where = f" (from {source[name]})" if name in source else ""
        value = f"={values[name]!r}" if values[name] is not None else ""
        because = ", or ".join(dict.fromkeys(messages))
        clauses.append(f"{name}{value}{where}: {because}" if name else because)
    return "; ".join(clauses)
