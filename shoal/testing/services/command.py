"""``scripts/services``: real HDFS and S3 on this machine, by hand."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.testing.services.fetching import ServiceUnavailable, cache
from shoal.testing.services.running import Running
from shoal.testing.services.table import SERVICES, service


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/services",
        description="Real HDFS and S3 on this machine, on free ports of loopback. What they are made of is fetched "
        f"once, into {cache()}.",
    )
    parser.add_argument("service", choices=sorted(SERVICES))
    actions = parser.add_subparsers(dest="action", required=True)
    for action, text in (
        ("start", 'start it, and print how to reach it, as shell commands: eval "$(scripts/services hdfs start)"'),
        ("stop", "end it; its data stays, and `start` goes on with it"),
        ("status", "say whether it runs; status 1 if not"),
        ("remove", "end it, and remove its data"),
    ):
        added = actions.add_parser(action, help=text)
        added.add_argument("--dir", type=Path, help="where its data lies (default .cache/services/run/SERVICE)")
    actions.add_parser("fetch", help="only fetch what it is made of")
    given = parser.parse_args(words)
    try:
        return _act(given)
    except (ServiceUnavailable, RuntimeError) as error:
        print(f"scripts/services: {given.service}: {error}", file=sys.stderr)
        return 2


def _act(given: Any) -> int:
    kind = service(given.service)
    if given.action == "fetch":
        kind.fetch()
        return 0
    folder = (given.dir or cache() / "run" / kind.name).absolute()
    running = Running.noted(folder)
    alive = running is not None and running.alive
    if given.action == "start":
        running = running if running is not None and alive else kind.start(folder)
        for name, value in running.environment.items():
            print(f"export {name}={shlex.quote(value)}")
        return 0
    if given.action == "status":
        print(f"{kind.name} runs: {running.url}" if running is not None and alive else f"{kind.name} does not run")
        return 0 if alive else 1
    kind.stop(folder)
    if given.action == "remove":
        if running is None and folder.exists() and any(folder.iterdir()):
            raise ServiceUnavailable(f"{folder} holds something else: it is not removed")
        shutil.rmtree(folder, ignore_errors=True)
    return 0
