"""`shoal doctor`: check machine, network and hosts before a run, and name the bad one."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.core.errors import ConfigError

if TYPE_CHECKING:
    from shoal.launch.doctor.facts import HostFacts
    from shoal.launch.doctor.findings import Finding

_SENT = "Hosts that are sent for"
_COME = "Hosts that come by themselves"
DEFAULT_KEY = Path("shoal-doctor.key")

HostNames = Annotated[
    str | None,
    typer.Option("--hosts", metavar="A,B", help="Examine these too, and the links between all.", rich_help_panel=_SENT),
]
Via = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="How a host is reached (default: ssh {host}).", rich_help_panel=_SENT),
]
There = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="How shoal is called there (default: as here).", rich_help_panel=_SENT),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Wait for others on this address of mine (auto, ADDRESS or ADDRESS:PORT).",
        rich_help_panel=_COME,
    ),
]
Expect = Annotated[int, typer.Option(metavar="N", help="So many others will come.", rich_help_panel=_COME)]
Join = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Be examined by the host that listens there.", rich_help_panel=_COME),
]
KeyFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help=f"Written by --listen (default {DEFAULT_KEY}), read by --join: nobody gets in without it.",
        rich_help_panel=_COME,
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="How long to wait for hosts to come, before they are examined (default: 5 for --hosts, 300 for --listen).",
    ),
]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="What this host is called in the table.", rich_help_panel=_COME)
]
Json = Annotated[bool, typer.Option("--json", help="Print the findings as JSON, and nothing else.")]

EXAMPLES = (
    ("this machine", "shoal doctor"),
    ("three hosts and the links between them, over ssh", "shoal doctor --hosts node1,node2"),
    ("without ssh: on one host (it prints what to type on the others)", "shoal doctor --listen auto --expect 2"),
    ("and on the others", "shoal doctor --join 192.168.1.5:40001 --key-file shoal-doctor.key"),
)


def doctor(  # noqa: PLR0913, PLR0917 - a command's arguments are its options
    hosts: HostNames = None,
    via: Via = None,
    there: There = None,
    listen: Listen = None,
    expect: Expect = 1,
    join: Join = None,
    key_file: KeyFile = None,
    name: Name = None,
    wait: Wait = None,
    json_output: Json = False,
) -> int:
    """Check machine, network and hosts before a run, and name the bad one.

    Looks at versions, cores, memory, /dev/shm, ports, interfaces and clocks, and
    measures every link both ways, in under 30 s (and what --wait adds to the usual 5 s
    for hosts to come). Who has not answered by then is named. Exits with 1 if
    something is bad.
    """
    from shoal.launch.doctor import practice
    from shoal.launch.doctor.findings import worst
    from shoal.launch.interfaces import listen_endpoint

    if join is not None:
        if hosts is not None or listen is not None:
            raise ConfigError("--join: the host that listens does all else: give neither --hosts nor --listen with it")
        words = practice.join(join, key_file or str(DEFAULT_KEY), name)
        print(f"shoal: {words}: see the table there", file=sys.stderr)
        return 0
    names = [one.strip() for one in (hosts or "").split(",") if one.strip()]
    if hosts is not None and not names:
        raise ConfigError("--hosts: name at least one, as in --hosts node1,node2")
    if wait is not None and wait < 0:
        raise ConfigError(f"--wait {wait:g}: a time cannot be negative")
    if expect < 1:
        raise ConfigError(f"--expect {expect}: at least 1 is needed")
    if names:
        with practice.Surgery(listen_endpoint(listen or "auto")) as surgery:
            examined = surgery.send_for(names, via or practice.SSH, there, practice.COME_S if wait is None else wait)
    elif listen is not None:
        with practice.Surgery(listen_endpoint(listen)) as surgery:
            key = Path(key_file or DEFAULT_KEY)
            surgery.write_key(key)
            _tell_how_to_join(surgery.place, key, expect)
            examined = surgery.wait_and_examine(expect, practice.TYPE_S if wait is None else wait)
    else:
        examined = practice.examine_here()
    facts, findings = examined
    if json_output:
        _print_json(facts, findings)
    else:
        _print_table(findings)
    return 1 if worst(findings) == "bad" else 0


def _tell_how_to_join(place: str, key: Path, expect: int) -> None:
    other = "the other host" if expect == 1 else f"each of the {expect} other hosts"
    print(
        f"shoal: copy {key} to {other} (scp keeps it private), and type there:\n"
        f"  shoal doctor --join {place} --key-file {key}",
        file=sys.stderr,
        flush=True,
    )


def _print_json(facts: Sequence[HostFacts], findings: Sequence[Finding]) -> None:
    from shoal.launch.doctor.findings import bad_hosts, worst

    whole = {
        "verdict": worst(findings),
        "bad_hosts": bad_hosts(findings),
        "findings": [one.to_json() for one in findings],
        "hosts": [one.to_json() for one in facts],
    }
    json.dump(whole, sys.stdout, indent=2)
    print(flush=True)


def _print_table(findings: Sequence[Finding]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from shoal.launch.doctor.findings import bad_hosts, worst

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("host", style="bold", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found")
    table.add_column("what to do")
    colours = {"ok": "green", "warn": "yellow", "bad": "bold red"}
    before = ""
    for one in findings:
        host = "" if one.host == before else one.host
        before = one.host
        table.add_row(Text(host), one.check, Text(one.verdict, colours[one.verdict]), Text(one.value), Text(one.remedy))
    console = Console(highlight=False)
    console.print(table)
    named = ", ".join(bad_hosts(findings)) or "a link between hosts"
    verdict = worst(findings)
    conclusion = {
        "ok": "All is well.",
        "warn": "A run will work; what is marked warn would make it slower or less sure.",
        "bad": f"Not fit for a run: {named}. See what to do above.",
    }
    console.print(Text(conclusion[verdict], colours[verdict]), soft_wrap=True)
