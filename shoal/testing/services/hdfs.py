"""HDFS: Hadoop's own name node and data node, with WebHDFS."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import urllib.parse
from pathlib import Path
from xml.sax.saxutils import escape

from shoal.testing.services.hadoop import class_path
from shoal.testing.services.running import (
    Running,
    Service,
    free_ports,
    java,
    kill,
    processes_of,
    spawn,
    wait_until_ready,
)

_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true")
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_FORMAT_S = 60.0


class Hdfs(Service):
    """One name node and one data node."""

    name = "hdfs"

    def fetch(self) -> None:
        java()
        class_path()

    def start(self, folder: Path, die_with_parent: bool = False) -> Running:
        self.fetch()
        folder = folder.absolute()
        before = Running.noted(folder)
        ports = before.ports if before is not None else free_ports("rpc", "http")
        configuration = folder / "conf"
        configuration.mkdir(parents=True, exist_ok=True)
        _configure(configuration, folder, ports)
        words = [java(), *_JAVA, "-cp", f"{configuration}:{class_path()}"]
        if not (folder / "name").exists():
            _format(words, folder)
        nodes = {
            name: spawn([*words, main], folder / f"{name}.log", die_with_parent)
            for name, main in (("namenode", _NAME_NODE), ("datanode", _DATA_NODE))
        }
        url = f"hdfs://127.0.0.1:{ports['rpc']}"
        environment = {"HDFS_URL": url, "WEBHDFS_URL": f"webhdfs://127.0.0.1:{ports['http']}"}
        try:
            wait_until_ready(lambda: _can_be_written(ports["http"]), nodes, lambda name: folder / f"{name}.log")
        except BaseException:
            kill(nodes)
            raise
        running = Running(self.name, str(folder), url, environment, ports, processes_of(nodes))
        running.note(folder)
        return running


def _configure(configuration: Path, folder: Path, ports: dict[str, int]) -> None:
    nobody_waits = {"ipc.client.connect.retry.interval": "100", "ipc.client.connect.max.retries": "100"}
    _write(
        configuration / "core-site.xml",
        {"fs.defaultFS": f"hdfs://127.0.0.1:{ports['rpc']}", "hadoop.tmp.dir": str(folder / "tmp"), **nobody_waits},
    )
    _write(
        configuration / "hdfs-site.xml",
        {
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.name.dir": f"file://{folder}/name",
            "dfs.datanode.data.dir": f"file://{folder}/data",
            "dfs.namenode.http-address": f"127.0.0.1:{ports['http']}",
            **{f"dfs.datanode.{which}address": "127.0.0.1:0" for which in ("", "ipc.", "http.")},
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.client.use.datanode.hostname": "true",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.safemode.min.datanodes": "1",
            "dfs.heartbeat.interval": "1",
        },
    )


def _write(path: Path, properties: dict[str, str]) -> None:
    inner = "".join(f"<property><name>{k}</name><value>{escape(v)}</value></property>\n" for k, v in properties.items())
    path.write_text(f"<configuration>\n{inner}</configuration>\n")


def _format(words: list[str], folder: Path) -> None:
    with (folder / "format.log").open("wb") as log:
        done = subprocess.run(
            [*words, _NAME_NODE, "-format", "-force", "-nonInteractive"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_FORMAT_S,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError("the name node could not be formatted:\n" + (folder / "format.log").read_text()[-2000:])


def _can_be_written(port: int) -> bool:
    """Whether a file can be put there, which takes both nodes."""
    path = "/webhdfs/v1/.ready"
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        told = json.loads(_ask(port, "PUT", f"{path}?op=CREATE&overwrite=true&noredirect=true"))
        where = urllib.parse.urlsplit(str(told.get("Location", "")))
        _ask(where.port or 0, "PUT", f"{where.path}?{where.query}", b"ready")
        _ask(port, "DELETE", f"{path}?op=DELETE")
        return True
    return False


def _ask(port: int, method: str, what: str, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, what, body)
        answer = connection.getresponse()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise ConnectionError(f"status {answer.status}")
        return answer.read()
    finally:
        connection.close()
