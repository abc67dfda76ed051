"""`shoal kvstore`: servers that keep arrays for any program, without a run."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.core.errors import ConfigError
from shoal.core.wrapping import for_stream

if TYPE_CHECKING:
    from shoal.store.description import FleetDescription

EXAMPLES = (
    ("two servers on this machine; everything about them is in the directory kvstore", "shoal kvstore --servers 2"),
    ("... and a program that uses them", "python -c \"import shoal; print(shoal.KVStore('kvstore').keys)\""),
    ("a killed server loses nothing", "shoal kvstore --servers 2 --replicas 2"),
    ("what is stored outlives the servers: a snapshot every minute", "shoal kvstore --snapshot 60 --dir tables"),
    (
        "for other hosts: copy tables/fleet.json and tables/kvstore.key there",
        "shoal kvstore --listen auto --dir tables",
    ),
    ("k-means over three processes", "python examples/kvstore_kmeans.py kvstore --workers 3"),
)
_WHERE = "Where it is"
_SURVIVES = "What it survives"

Servers = Annotated[int, typer.Option("--servers", "-s", metavar="N", help="Servers: keys are spread over them.")]
Directory = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="Where fleet.json, key, log and snapshots are.", rich_help_panel=_WHERE),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Let other hosts in, on this address of mine: auto, ADDRESS or ADDRESS:PORT (default: this host only).",
        rich_help_panel=_WHERE,
    ),
]
Encrypt = Annotated[
    str,
    typer.Option(
        metavar="auto|on|off",
        help="TCP is always authenticated; auto encrypts it between hosts.",
        rich_help_panel=_WHERE,
    ),
]
Replicas = Annotated[
    int, typer.Option(metavar="1|2", help="2: every server has a backup that takes over.", rich_help_panel=_SURVIVES)
]
Snapshot = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="Write everything to disk so often, and at the end.", rich_help_panel=_SURVIVES
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="MODULE", help="A module with updaters or consistencies of your own. May be repeated."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print where the servers are as one line of JSON, and nothing else.")
]


def kvstore(
    servers: Servers = 1,
    directory: Directory = Path("kvstore"),
    listen: Listen = None,
    encrypt: Encrypt = "auto",
    replicas: Replicas = 1,
    snapshot: Snapshot = None,
    plugin: Plugins = None,
    json_output: Json = False,
) -> int:
    """Keep arrays for other programs, until Ctrl-C.

    Any Python process that can read DIR reaches them with shoal.KVStore(DIR),
    to set, get, push and pull NumPy arrays, whole or by rows. Keys are spread
    evenly over the servers, and large arrays are cut. See docs/kvstore.md.
    """
    from shoal.launch.interfaces import listen_endpoint
    from shoal.store.fleet import run_fleet
    from shoal.store.terms import FleetTerms

    if encrypt not in ("auto", "on", "off"):
        raise ConfigError(f"--encrypt {encrypt}: give auto, on or off")
    place = None if listen is None else listen_endpoint(listen)
    terms = FleetTerms(
        servers=servers,
        replicas=replicas,
        host="127.0.0.1" if place is None else place.address,
        port=0 if place is None else place.port,
        snapshot_s=snapshot,
        encrypt=encrypt,  # type: ignore[arg-type] # checked above
    )
    plugins = tuple(plugin or ())
    if json_output:
        run_fleet(directory, terms, plugins=plugins, say=_to_stderr, on_ready=partial(_print_json, directory))
    else:
        run_fleet(directory, terms, plugins=plugins, say=_say)
    return 0


def _say(words: str) -> None:
    print(for_stream(f"shoal: {words}", sys.stdout), flush=True)


def _to_stderr(words: str) -> None:
    print(for_stream(f"shoal: {words}", sys.stderr), file=sys.stderr, flush=True)


def _print_json(directory: Path, found: FleetDescription) -> None:
    from shoal.store.description import KEY_FILE

    described = {"dir": str(directory), "key": str(directory / KEY_FILE), **found.to_plain()}
    print(json.dumps(described), flush=True)
