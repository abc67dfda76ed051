"""`shoal prepare`: from raw files to a data set of shards."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.core.errors import ConfigError

if TYPE_CHECKING:
    from shoal.data.preparing.prepare import Prepared

EXAMPLES = (
    ("a CSV becomes shards of about 64 MiB", "shoal prepare ratings.csv ratings"),
    ("... and this shows what became of it", "shoal data inspect ratings"),
    ("16 shards by user, heavy users spread", "shoal prepare ratings.csv ratings --partition key:user --shards 16"),
    (
        "several built-in jobs in a row, no code",
        "shoal prepare s3://raw/ratings hdfs://nn:9000/ratings --job convert:float32=stars "
        "--job normalise:columns=stars --job dedupe:by=user,item",
    ),
    (
        "functions of your own: map, key, combine, reduce",
        "shoal prepare 'logs/*.jsonl' days --job job.py --partition key",
    ),
    ("broken lines are put aside and reported", "shoal prepare raw.csv clean --bad-records reject"),
)
_HOW = "How rows are divided"
_WHERE = "Where it runs"

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A file, a folder or a pattern: local, hdfs://, s3://.")]
Dest = Annotated[str, typer.Argument(metavar="DEST", help="A folder for the data set: local, hdfs://, s3://.")]
Jobs = Annotated[
    list[str] | None,
    typer.Option(
        "--job",
        metavar="JOB",
        help="job.py, or convert, normalise, vocabulary, select, augment, dedupe with options. May be repeated.",
    ),
]
By = Annotated[
    str,
    typer.Option(
        "--partition",
        metavar="BY",
        help="file, round-robin, key:COLUMN, range:COLUMN or rank:COLUMN; key alone: the job's key().",
        rich_help_panel=_HOW,
    ),
]
Shards = Annotated[
    str, typer.Option(metavar="N|SIZE", help="How many, or how much of the source in each.", rich_help_panel=_HOW)
]
KeepKeys = Annotated[
    bool,
    typer.Option("--keep-keys", help="Never spread a key over shards: skew is only reported.", rich_help_panel=_HOW),
]
Bad = Annotated[
    str,
    typer.Option(
        "--bad-records", metavar="fail|reject", help="Stop at a bad record, or put it aside in DEST/_rejects.jsonl."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the data set at DEST, when the new one is done.")]
Format = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="What the files are, if their names do not tell.")
]
EngineName = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="local, ray or spark.", rich_help_panel=_WHERE)
]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-option",
        metavar="NAME=VALUE",
        help="ray: address; spark: master, spark.*; both: paths. May be repeated.",
        rich_help_panel=_WHERE,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="For all processes of this machine together, e.g. 1GiB.", rich_help_panel=_WHERE),
]
Processes = Annotated[
    int | None, typer.Option(metavar="N", help="At most so many (default: one a core).", rich_help_panel=_WHERE)
]
WorkDir = Annotated[
    str | None,
    typer.Option("--work", metavar="DIR", help="Where rows are spilled (default: DEST/_work).", rich_help_panel=_WHERE),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON, and nothing else.")]


def prepare(  # noqa: PLR0913, PLR0917 - one for each option
    source: Source,
    dest: Dest,
    job: Jobs = None,
    partition: By = "file",
    shards: Shards = "64MiB",
    keep_keys: KeepKeys = False,
    bad_records: Bad = "fail",
    overwrite: Overwrite = False,
    format_name: Format = None,
    engine: EngineName = "local",
    engine_option: EngineOptions = None,
    memory: Memory = None,
    processes: Processes = None,
    work: WorkDir = None,
    json_output: Json = False,
) -> int:
    """Make a data set of raw files: map, shuffle, reduce, divide into shards.

    Parquet, CSV, JSON lines, NumPy, images and WebDataset are read; shards are
    Parquet, with a manifest beside them. Killed half-way it leaves no data
    set, and the same command goes on where it was. See docs/data.md.
    """
    from shoal.cli.prepare_progress import progress_for
    from shoal.core.errors import ShoalError
    from shoal.data.preparing import prepare as preparing

    with progress_for(json_output) as progress:
        try:
            made = preparing.prepare(
                source,
                dest,
                job=list(job or ()),
                partition=partition,
                shards=shards,
                engine=engine,
                engine_options=_pairs(engine_option or ()),
                bad_records=bad_records,
                keep_keys=keep_keys,
                overwrite=overwrite,
                memory=memory,
                processes=processes,
                work=work,
                format=format_name,
                progress=progress,
            )
        except KeyboardInterrupt:
            progress.close()
            print("shoal: interrupted; what is done is kept: the same command goes on from here", file=sys.stderr)
            return 130
        except ImportError as error:
            raise ConfigError(
                f"preparing data needs {error.name}, which is not installed: pip install 'shoal[data]'"
            ) from None
        except ShoalError:
            progress.close()
            raise
    if json_output:
        print(json.dumps(to_plain(made)))
    else:
        show(made)
    return 0


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ConfigError(f"--engine-option {word}: give NAME=VALUE, such as address=auto")
        pairs[name] = value
    return pairs


def to_plain(made: Prepared) -> dict[str, object]:
    """The result, for programs."""
    manifest = made.manifest
    return {
        "place": made.place.url,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "source_rows": made.source_rows,
        "source_bytes": made.source_bytes,
        "rejected": manifest.rejected,
        "skew": manifest.skew,
        "elapsed_s": made.elapsed_s,
        "shards": [{"file": shard.file, "rows": shard.rows, "bytes": shard.bytes} for shard in manifest.shards],
    }


def show(made: Prepared) -> None:
    """The table of shards, what was rejected, and where to look."""
    from rich.console import Console

    from shoal.cli.shard_table import shard_table, skew_words
    from shoal.data.preparing.rejects import FILE
    from shoal.data.preparing.sizes import show_size

    console = Console(highlight=False)
    manifest = made.manifest
    console.print(shard_table(manifest))
    console.print(
        f"{manifest.rows:,} rows of {made.source_rows:,}, {show_size(manifest.bytes)} of {show_size(made.source_bytes)}"
        f", in {made.elapsed_s:.1f} s ({made.source_rows / max(made.elapsed_s, 1e-9):,.0f} rows/s, "
        f"{show_size(made.source_bytes / max(made.elapsed_s, 1e-9))}/s); {skew_words(manifest)}"
    )
    if manifest.rejected:
        console.print(f"rejected: {manifest.rejected:,} records, see {made.place / FILE}")
    console.print(f"look at it with: shoal data inspect {made.place}", soft_wrap=True)
