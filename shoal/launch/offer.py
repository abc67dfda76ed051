"""What a run tells hosts that want to join it: which script, with which arguments and settings. Lies in the
coordinator's store, where only who has the run's key can read it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from shoal.core.config import ElasticSettings
from shoal.core.errors import ShoalError, UserError
from shoal.launch.job import Job
from shoal.launch.session import Layer

STORE_KEY = "job"
_LARGEST_BYTES = 1 << 16  # what a store takes


@dataclass(frozen=True)
class Offer:
    """The job of a run, for its other hosts. `script` is where it lies on the home host, `sha256` that of its text.
    `workers`: as the command on the home host states it."""

    script: str
    sha256: str
    script_args: tuple[str, ...]
    layers: tuple[Layer, ...]
    workers: int
    threads: int | None
    elastic: ElasticSettings

    def to_bytes(self) -> bytes:
        data = json.dumps(
            {**asdict(self), "layers": self.layers, "elastic": self.elastic.model_dump(mode="json")}, default=_plain
        ).encode()
        if len(data) > _LARGEST_BYTES:
            raise UserError(f"settings and arguments of the run are too long to be joined: {len(data)} bytes")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Offer:
        """Raises a `UserError` for what another version of Shoal offers."""
        try:
            fields = json.loads(data)
            fields["script_args"] = tuple(str(word) for word in fields["script_args"])
            fields["layers"] = tuple((str(where), dict(settings)) for where, settings in fields["layers"])
            fields["elastic"] = ElasticSettings.model_validate(fields["elastic"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, ValidationError) as error:
            raise UserError("the run is of another version of Shoal: install the same on all hosts") from error


def offer_of(job: Job) -> Offer:
    """What `job` offers to other hosts. Raises a `UserError` if it is nothing that they could run."""
    if job.script is None:
        raise UserError("a program that was sent from a notebook cannot be joined from other hosts: put it in a script")
    script = Path(job.script).resolve()
    return Offer(
        script=str(script),
        sha256=sha256_of(script),
        script_args=job.script_args,
        layers=job.layers,
        workers=job.workers,
        threads=job.threads,
        elastic=job.elastic,
    )


def job_of(offer: Offer, script: Path | None) -> Job:
    """The job, as it is on the home host. The script lies here where it does there, or at `script`, and must be the
    very same: raises a `UserError` otherwise."""
    path = script if script is not None else Path(offer.script)
    if not path.is_file():
        raise UserError(
            f"there is no script {path} on this host: copy it here from the host of the run, and say where it is "
            "with --script PATH"
        )
    found = sha256_of(path)
    if found != offer.sha256:
        raise UserError(
            f"{path} on this host is not the script of the run: its sha256 is {found}, that of {offer.script} on the "
            f"host of the run {offer.sha256}: copy that one here"
        )
    return Job(
        workers=offer.workers,
        script=str(path),
        script_args=offer.script_args,
        layers=offer.layers,
        threads=offer.threads,
        elastic=offer.elastic,
    )


def sha256_of(script: Path) -> str:
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError as error:
        raise ShoalError(f"the script {script} cannot be read: {error.strerror}") from None


def _plain(value: object) -> Any:
    """Settings may hold values of their own: groups such as `Clip`, lengths, which are written as text."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    return dict(value) if isinstance(value, Mapping) else str(value)
