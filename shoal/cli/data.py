"""`shoal data`: look at data, prepared or not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.data.inspection import Inspection
    from shoal.data.manifest import Manifest

EXAMPLES = (
    ("schema, shards and skew", "shoal data inspect ratings"),
    ("the same for programs", "shoal data inspect s3://prepared/ratings --json"),
    ("files as they are: columns, empty values, the first records", "shoal data inspect rides.csv"),
    ("a data set by its name", "shoal data inspect digits:train"),
)

Where = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="The folder of a prepared data set; a file, folder or pattern of CSV, JSON lines, Parquet, NumPy, "
        "images or tar; or NAME:SPLIT. Local, hdfs://, s3://, https://.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print it as one line of JSON, and nothing else.")]


def inspect(dest: Where, json_output: Json = False) -> int:
    """Show data. Of a prepared data set: schema, rows, shards, skew, heavy keys, rejects. Of anything else that
    `shoal.data.open` reads: columns, types, empty values, ranges, the first records."""
    from shoal.data.opening import is_prepared

    if not is_prepared(dest):
        return _inspect_raw(dest, json_output)
    from shoal.data.manifest import Manifest
    from shoal.data.places import Place

    manifest = Manifest.read(Place.of(dest))
    if json_output:
        print(json.dumps(to_plain(manifest)))
    else:
        show(dest, manifest)
    return 0


def _inspect_raw(what: str, json_output: bool) -> int:
    from dataclasses import asdict

    from shoal.data.inspection import inspect as look

    found = look(what)
    if json_output:
        print(json.dumps(asdict(found), default=_for_json))
    else:
        show_raw(found)
    return 0


def _for_json(value: object) -> str:
    """Bytes of a record, and what else JSON has no word for."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)


def show_raw(found: Inspection) -> None:
    """Data that nobody has prepared, for a person."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from shoal.data.preparing.sizes import show_size

    console = Console(highlight=False)
    records = f"{found.records:,}" if found.records is not None else f"more than {found.looked_at:,}"
    files = "1 file" if found.files == 1 else f"{found.files:,} files"
    size = f", {show_size(found.bytes)} in {files}" if found.files else ""
    console.print(f"{found.what}: {found.format}, {records} records{size}", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("column", "type", "empty", "min", "mean", "max", "the first"):
        table.add_column(name, justify="right" if name in ("empty", "min", "mean", "max") else "left", no_wrap=True)
    for one in found.columns:
        numbers = ["" if number is None else f"{number:.4g}" for number in (one.low, one.mean, one.high)]
        shown = ", ".join(_brief(record.get(one.name)) for record in found.first)
        table.add_row(Text(one.name), one.type, f"{one.missing:,}" if one.missing else "", *numbers, Text(shown))
    console.print(table)
    if found.records != found.looked_at:
        console.print(f"(empty, min, mean and max: of the first {found.looked_at:,} records)")
    for bad in found.bad[:3]:
        console.print(f"bad record in {bad.file} at {bad.offset}: {bad.reason}", soft_wrap=True)


def _brief(value: object) -> str:
    text = f"{len(value)} bytes" if isinstance(value, bytes) else "" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"


def to_plain(manifest: Manifest) -> dict[str, Any]:
    """What is shown, for programs."""
    from shoal.data.partition.plan import Plan

    return {
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "schema": {field.name: field.type for field in manifest.fields},
        "shards": [
            {"file": shard.file, "rows": shard.rows, "bytes": shard.bytes, "keys": shard.keys}
            for shard in manifest.shards
        ],
        "skew": manifest.skew,
        "plain_skew": Plan.of(manifest).plain_skew if manifest.partition else None,
        "heavy": manifest.partition.get("heavy", []),
        "partition": {name: manifest.partition.get(name) for name in ("by", "column", "keep_keys")},
        "statistics": {name: one.model_dump() for name, one in manifest.statistics.items()},
        "source": manifest.source,
        "job": manifest.job,
        "rejected": manifest.rejected,
    }


def show(dest: str, manifest: Manifest) -> None:
    """For a person."""
    from rich.console import Console
    from rich.table import Table

    from shoal.cli.shard_table import shard_table, skew_words
    from shoal.data.preparing.sizes import show_size

    console = Console(highlight=False)
    console.print(
        f"{dest}: {manifest.rows:,} rows, {show_size(manifest.bytes)}, {len(manifest.shards)} shards", soft_wrap=True
    )
    schema = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("column", "type", "nulls", "min", "mean", "max", "std"):
        schema.add_column(name, justify="left" if name in ("column", "type") else "right")
    for field in manifest.fields:
        found = manifest.statistics.get(field.name)
        numbers = [] if found is None else [found.min, found.mean, found.max, found.std]
        shown = ["" if number is None else f"{number:.4g}" for number in numbers]
        schema.add_row(field.name, field.type, f"{found.nulls:,}" if found else "", *shown)
    console.print(schema)
    console.print()
    console.print(shard_table(manifest))
    console.print()
    by = ":".join(str(manifest.partition[name]) for name in ("by", "column") if manifest.partition.get(name))
    console.print(f"partition {by or 'unknown'}: {skew_words(manifest)}")
    _show_heavy(console, manifest)
    if manifest.rejected:
        console.print(f"rejected: {manifest.rejected:,} records, in _rejects.jsonl")


def _show_heavy(console: Any, manifest: Manifest) -> None:
    from rich.table import Table
    from rich.text import Text

    from shoal.cli.shard_table import bar
    from shoal.data.partition.plan import Plan

    heavy = Plan.of(manifest).heavy if manifest.partition else ()
    if not heavy:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("heavy key", "rows", "in shards", ""):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for key in heavy:
        shards = f"{key.shards[0]}-{key.shards[-1]}" if len(key.shards) > 1 else str(key.shards[0])
        table.add_row(Text(str(key.key)), f"{key.rows:,}", shards, bar(key.rows, heavy[0].rows, 16))
    console.print(table)
