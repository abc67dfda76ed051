"""How a run begins: what its callbacks may look at, and the events that come before its first step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.cursor import Batches, Cursor
from shoal.core.events import Decision, Event, MemberJoined, RunStarted
from shoal.core.world import Member
from shoal.launch.resume import resume_command
from shoal.launch.session import Session
from shoal.train.callbacks import RunInfo
from shoal.train.header import header
from shoal.train.opening import Opened
from shoal.train.place import Place
from shoal.train.spec import RunSpec


@dataclass(frozen=True)
class Standing:
    """Where training is when somebody begins to tell of it; `train_loss`: of its epoch so far."""

    cursor: Cursor
    train_loss: float | None
    resumed_from: Path | None = None


def run_info(
    spec: RunSpec, opened: Opened, session: Session, place: Place, batches: Batches, total_steps: int | None,
    taken_over: bool = False,
) -> RunInfo:  # fmt: skip
    """What every callback is given with an event."""
    return RunInfo(
        config=opened.config,
        run_dir=opened.run_dir.path,
        strategy=spec.strategy.name,
        backend=place.group.backend,
        workers=place.group.size,
        total_steps=total_steps or 0,
        steps_per_epoch=batches.per_epoch if spec.growing is None else 0,
        module=spec.program.model,
        json_output=session.json_output,
        resume_command=resume_command(session, opened.config.workers, opened.resume_dir),
        taken_over=taken_over,
        header=header(spec, opened, place, batches),
        hosts=place.view.hosts,
    )


def opening_events(
    info: RunInfo, opened: Opened, members: Sequence[Member], batches: Batches, standing: Standing,
    notes: Sequence[Event],
) -> Iterator[Event]:  # fmt: skip
    """Who is there, what was chosen, what is to be noted, and where training begins."""
    for member in members:
        yield MemberJoined(member.role, member.rank, member.host, member.pid)
    yield Decision("grain", f"{opened.cutting.grain}, {opened.config.passes}", opened.cutting.why)
    if opened.config.layout == "channels_last":
        yield Decision("layout", "channels_last", "the model's convolutions are quicker so, and it gave the same loss")
    mixing = dict(info.header).get("shuffle")
    if mixing is not None:
        yield Decision("shuffle", mixing.partition(":")[0], mixing)
    yield from notes
    yield run_started(info, batches, standing)


def run_started(info: RunInfo, batches: Batches, standing: Standing) -> RunStarted:
    """What is told first, once all who listen are there."""
    resumed_from = standing.resumed_from
    return RunStarted(
        strategy=info.strategy,
        backend=info.backend,
        workers=info.workers,
        cursor=standing.cursor,
        total_steps=info.total_steps,
        steps_per_epoch=batches.per_epoch,
        samples=batches.samples,
        resumed_from=str(resumed_from) if resumed_from is not None else None,
        train_loss=standing.train_loss,
    )
