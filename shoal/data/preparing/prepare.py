"""`shoal prepare`: from raw files to a prepared data set."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from shoal.core.errors import UserError
from shoal.data.formats import Found, find
from shoal.data.manifest import Manifest
from shoal.data.partition.sample import samples_for
from shoal.data.partition.scheme import Partition
from shoal.data.places import Place
from shoal.data.preparing.alone import alone_at
from shoal.data.preparing.describing import describe, final_schema
from shoal.data.preparing.division import Division, divide
from shoal.data.preparing.engine import Engine
from shoal.data.preparing.engines import open_engine, refuse_local_paths, sizes_for
from shoal.data.preparing.jobs import JobLike, open_jobs
from shoal.data.preparing.layout import Keyed, Layout
from shoal.data.preparing.progress import Progress
from shoal.data.preparing.rejects import gather
from shoal.data.preparing.request import Request
from shoal.data.preparing.sizes import Sizes, parse_size
from shoal.data.preparing.stages import Runs, Stages, layout_for, tasks_of
from shoal.data.preparing.task import Result
from shoal.data.preparing.work import Work, lock_folder
from shoal.data.preparing.write_task import WriteTask, group_rows

SHARDS = "64MiB"


@dataclass(frozen=True)
class Prepared:
    """A data set that was made: where, its manifest, and what it took."""

    place: Place
    manifest: Manifest
    source_rows: int
    source_bytes: int
    elapsed_s: float


def prepare(  # noqa: PLR0913 - all but two have defaults, and names
    source: str | PathLike[str] | Place,
    dest: str | PathLike[str] | Place,
    *,
    job: JobLike | Sequence[JobLike] | None = None,
    partition: str | Partition = "file",
    shards: int | str = SHARDS,
    engine: str | Engine = "local",
    engine_options: Mapping[str, str] | None = None,
    bad_records: str = "fail",
    keep_keys: bool = False,
    overwrite: bool = False,
    memory: str | int | None = None,
    processes: int | None = None,
    sizes: Sizes | None = None,
    work: str | PathLike[str] | None = None,
    format: str | None = None,  # noqa: A002 - the word for it
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Read the raw files at `source`, pass them through `job`, and write Parquet shards and a manifest to `dest`.

    `shards` is their number, or about how much of the source each holds (``"64MiB"``). `partition` is one of ``file``,
    ``round-robin``, ``key:COLUMN``, ``range:COLUMN``, ``rank:COLUMN``. `memory` bounds what all processes of this
    machine use together. `work` is the folder for what is spilled (default: within `dest` if that is local, else the
    system's folder for temporary files). A job that was broken off goes on where it was when the same is asked for
    again.
    Raises `UserError` for what a person can mend; then, too, there is no data set at `dest`.
    """
    began = time.monotonic()
    progress = progress or Progress()
    from_, to = Place.of(source, options), Place.of(dest, options)
    chain = open_jobs(job)
    by = partition if isinstance(partition, Partition) else Partition.parse(partition)
    found = find(from_, format)
    memory_bytes = parse_size(str(memory), "--memory") if memory else None
    with open_engine(engine, memory_bytes, processes, progress.say, engine_options or {}) as runner:
        refuse_local_paths(runner, from_, to, *([Place.of(work)] if work is not None else []))
        request = Request(
            source=from_,
            dest=to,
            chain=chain,
            partition=by,
            shards=_count(shards, found),
            keep_keys=keep_keys,
            bad_records=bad_records,
            overwrite=overwrite,
            sizes=sizes or sizes_for(runner, memory),
        )
        return _prepared(request, found, runner, work, progress, began)


def _prepared(
    request: Request,
    found: list[Found],
    engine: Engine,
    work: str | PathLike[str] | None,
    progress: Progress,
    began: float,
) -> Prepared:
    layout = layout_for(request)  # refuses what cannot be, before anything is read
    schema = found[0][1].common_schema([entry for entry, _ in found])
    packed = schema.serialize().to_pybytes()
    desk = Work.at(request, request.fingerprint(found, packed), engine.shares_disk, work)
    with alone_at(request.dest, lock_folder(request.dest)):
        desk.settle(request, progress.say)
        manifest, mapped = _made(request, found, packed, layout, Stages(request, engine, desk.place, progress), desk)
    return Prepared(
        request.dest,
        manifest,
        sum(result["rows"] for result in mapped),
        sum(entry.nbytes for entry, _ in found),
        time.monotonic() - began,
    )


def _made(
    request: Request, found: list[Found], packed: bytes, layout: Layout, stages: Stages, desk: Work
) -> tuple[Manifest, list[Result]]:
    splits = [split for entry, kind in found for split in kind.splits(entry, request.sizes.block_bytes)]
    tasks = tasks_of(splits, request.sizes.block_bytes)
    layout = replace(layout, samples=samples_for(len(tasks), request.shards))
    learned = stages.learn(tasks, packed)
    mapped, runs = _rows(request, stages, tasks, packed, learned, layout, desk)
    rejected = sum(result["rejected"] for result in mapped)
    _refuse_nothing(request, runs, mapped, desk)
    division = divide(request, runs, stages)
    written = _write(request, runs, division, stages, desk)
    manifest = describe(request, found, runs, division, written, rejected, learned)
    gather(
        [desk.place / f"map-{number:05}.rejects.jsonl" for number, one in enumerate(mapped) if one["rejected"]],
        request.dest,
    )
    manifest.write(request.dest)
    desk.finish(manifest)
    return manifest, mapped


def _rows(
    request: Request,
    stages: Stages,
    work: Sequence[Any],
    schema: bytes,
    learned: Sequence[Any],
    layout: Layout,
    desk: Work,
) -> tuple[list[Result], Runs]:
    """Map, and shuffle as often as the job and the partition need it."""
    reducer = request.chain.reducer
    first = layout if reducer is None else Layout(request.shards, Keyed("key", None, reducer), samples=layout.samples)
    mapped = stages.map(work, schema, learned, first)
    runs = Runs(desk.place, tuple(run for result in mapped for run in result["runs"]))
    if reducer is not None and runs.results:
        runs = stages.regroup("reduce", runs, layout, learned, reduce=True)
    if request.partition.kind == "rank" and runs.results:
        runs = stages.regroup("deal", runs, None, (), reduce=False)
    return mapped, runs


def _refuse_nothing(request: Request, runs: Runs, mapped: Sequence[Result], desk: Work) -> None:
    if runs.rows:
        return
    rejected = sum(result["rejected"] for result in mapped)
    if rejected:
        number = next(number for number, result in enumerate(mapped) if result["rejected"])
        first = (desk.place / f"map-{number:05}.rejects.jsonl").read().decode().partition("\n")[0]
        raise UserError(
            f"all {rejected} records of {request.source} were rejected, so there is no data set. The first: {first}"
        )
    raise UserError(f"no row of {request.source} is left after the job, so there is no data set: look at the job")


def _write(request: Request, runs: Runs, division: Division, stages: Stages, desk: Work) -> list[Result]:
    schemas, _ = runs.schemas
    key = runs.results[0].get("key") if request.partition.is_line else None
    rows = group_rows(runs.rows, runs.nbytes)
    tasks = [
        WriteTask(
            f"write-{number:05}",
            desk.place,
            request.dest,
            desk.shard_name(number),
            pieces,
            tuple(schemas),
            final_schema(runs).serialize().to_pybytes(),
            rows,
            key,
        )
        for number, pieces in enumerate(division.shards)
    ]
    sizes = [sum(part.stop - part.start for piece in task.pieces for part, _ in piece) for task in tasks]
    return stages.run("write", tasks, sizes)


def _count(shards: int | str, found: list[Found]) -> int:
    text = str(shards).strip()
    if text.lstrip("-").isdigit():
        return int(text)
    return max(1, -(-sum(entry.nbytes for entry, _ in found) // parse_size(text, "--shards")))
