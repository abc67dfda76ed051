"""`shoal join`: this host takes part in a run of another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    ("on the host of the run (it prints the line to type on the others)", "shoal train digits.py --listen auto"),
    ("one worker here", "shoal join 192.168.1.5:40001 --key-file key"),
    (
        "four workers here, with the script in another place",
        "shoal join 192.168.1.5:40001 --key-file key -w 4 --script d.py",
    ),
)
Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="Where the run listens: ADDRESS:PORT, as it printed it.")
]
KeyFile = Annotated[
    Path, typer.Option(metavar="FILE", help="A copy of the file `key` of its run directory, for your eyes only.")
]
Workers = Annotated[int, typer.Option("--workers", "-w", metavar="N", help="Worker processes on this host.")]
Script = Annotated[
    Path | None, typer.Option(metavar="PATH", help="The script on this host, if it lies elsewhere than over there.")
]


def join(
    context: typer.Context, address: Address, key_file: KeyFile, workers: Workers = 1, script: Script = None
) -> int:
    """Take part in a run of another host, with workers on this one.

    They join at the end of a step and copy the state of the others. Ctrl-C or SIGTERM:
    they finish their step and go, and the run goes on without them. Script, data and
    packages must be here as they are there (`shoal doctor --hosts` compares hosts).
    """
    from shoal.launch.joining import Joining, invitation

    return Joining(invitation(address, key_file), workers, script, context.obj).run()
