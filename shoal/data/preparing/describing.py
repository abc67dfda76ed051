"""What the manifest says of a job that is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.data.formats import Found
from shoal.data.manifest import Manifest, Shard, Statistics
from shoal.data.preparing.builtin.moments import Moments, is_number
from shoal.data.preparing.division import Division
from shoal.data.preparing.request import Request
from shoal.data.preparing.shuffle import common_schema
from shoal.data.preparing.spill import OWN, read_schema
from shoal.data.preparing.stages import Runs
from shoal.data.preparing.step import Chain
from shoal.data.preparing.task import Result


def final_schema(runs: Runs) -> Any:
    """Of the shards: what all runs fit into, without the columns that are our own."""
    schemas, _ = runs.schemas
    schema = common_schema([read_schema(one) for one in schemas])
    for name in OWN:
        if name in schema.names:
            schema = schema.remove(schema.get_field_index(name))
    return schema


def describe(
    request: Request,
    found: list[Found],
    runs: Runs,
    division: Division,
    written: Sequence[Result],
    rejected: int,
    learned: Sequence[Any],
) -> Manifest:
    """The manifest of a data set whose shards are all there."""
    schema = final_schema(runs)
    shards = tuple(Shard.model_validate(result["shard"]) for result in written)
    arrow_schema, fields = Manifest.pack_schema(schema)
    return Manifest(
        rows=sum(shard.rows for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        fields=fields,
        arrow_schema=arrow_schema,
        shards=shards,
        partition=division.plan.model_dump(mode="json"),
        statistics=_statistics(written, schema),
        source={
            "url": request.source.url,
            "format": found[0][1].name,
            "files": len(found),
            "bytes": sum(entry.nbytes for entry, _ in found),
        },
        job={"steps": _steps(request.chain, learned)},
        rejected=rejected,
    )


def _steps(chain: Chain, learned: Sequence[Any]) -> list[dict[str, Any]]:
    """The steps, with what they have learned."""
    return [
        step.describe() | ({"learned": step.lesson(lesson)} if lesson is not None else {})
        for step, lesson in zip(chain.steps, learned, strict=True)
    ]


def _statistics(written: Sequence[Result], schema: Any) -> dict[str, Statistics]:
    whole: dict[str, Statistics] = {}
    for field in schema:
        moments = Moments()
        for result in written:
            moments += Moments(**result["statistics"][field.name])
        if is_number(field.type) and moments.count:
            whole[field.name] = Statistics(
                nulls=moments.missing, min=moments.low, max=moments.high, mean=moments.mean, std=moments.std
            )
        else:
            whole[field.name] = Statistics(nulls=moments.missing)
    return whole
