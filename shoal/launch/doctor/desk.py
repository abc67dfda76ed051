"""A coordinator for the time of an examination, in a process of its own that ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import shoal.launch
from shoal.core.errors import ShoalError, UserError
from shoal.elastic.keys import RunKeys
from shoal.elastic.process import CoordinatorSpec, serve
from shoal.launch.interfaces import Endpoint
from shoal.launch.process import die_with_parent

READY_S = 20.0
_BOOTSTRAP = """
import sys
parent, path = int(sys.argv[1]), sys.argv[2]
sys.argv = ["-m"]  # this process has no need of PyTorch
sys.path += [path] if path not in sys.path else []
from shoal.launch.doctor.desk import main
main(parent)
"""


@contextlib.contextmanager
def desk(keys: RunKeys, endpoint: Endpoint, ready_s: float = READY_S) -> Iterator[str]:
    """Have a coordinator listen on `endpoint`, for who has the keys; gives its address, ``tcp://host:port``.

    Raises a `UserError` if it cannot listen there, a `ShoalError` if it does not start within `ready_s`. It ends with
    the thread that has entered this."""
    path = str(Path(shoal.launch.__path__[0]).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOTSTRAP, str(os.getpid()), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        spec = CoordinatorSpec(keys, host=endpoint.address, port=endpoint.port)
        with contextlib.suppress(BrokenPipeError), process.stdin:  # the keys go in unseen by others
            process.stdin.write(json.dumps(spec.to_json()).encode())
        yield _address(process.stdout.fileno(), str(endpoint), ready_s)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _address(fd: int, place: str, ready_s: float) -> str:
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], ready_s)
        data = os.read(fd, 4096) if ready else b""
        if not data:
            raise ShoalError(f"the process that listens on {place} did not start")
        line += data
    message = json.loads(line)
    if "problem" in message:
        raise UserError(message["problem"])
    return str(message["address"])


def main(parent: int) -> None:
    """The life of that process."""
    die_with_parent(parent)
    spec = CoordinatorSpec.from_json(json.load(sys.stdin))
    try:
        serve(spec, lambda address: print(json.dumps({"address": address}), flush=True))
    except ShoalError as error:
        print(json.dumps({"problem": str(error)}), flush=True)
