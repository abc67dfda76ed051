"""What can be seen of one host, gathered on it in a few seconds. Judged elsewhere."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from shoal.core.errors import UserError
from shoal.launch.interfaces import LOOPBACK, interface_of

TORCH_S = 10.0  # for torch to be imported and to add two numbers, from a cold disk
_TRY_TORCH = (
    "import time; t = time.monotonic(); import torch; assert torch.ones(2).sum() == 2; print(time.monotonic() - t)"
)


@dataclass(frozen=True)
class HostFacts:
    """Facts of a host, as plain values. Versions are empty where a package is missing; `torch_problem` says why torch
    does not work, `torch_s` how long its import took (`TORCH_S`: it was not waited for any longer)."""

    host: str
    address: str
    interface: str
    speed_mbit: int
    shoal: str
    python: str
    torch: str
    torch_problem: str
    torch_s: float
    cores: int
    load: float
    memory_bytes: int
    available_bytes: int
    shm_bytes: int
    shm_free_bytes: int
    open_files: int
    free_ports: int
    ports_problem: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostFacts:
        """Raises a `UserError` for what another version of Shoal has sent."""
        expected = {one.name: one.type for one in fields(cls)}
        kinds = {"str": str, "int": int, "float": (int, float)}
        if set(data) != set(expected) or not all(isinstance(data[n], kinds[str(k)]) for n, k in expected.items()):  # type: ignore[arg-type]
            raise UserError("a host has sent facts that this version of Shoal does not know: install the same on all")
        return cls(**data)


def gather(address: str = LOOPBACK, torch_s: float = TORCH_S) -> HostFacts:
    """Look at this host, which is to take part in runs with this address of its own. Takes as long as importing torch
    does, in a process of its own, which is not waited for beyond `torch_s`."""
    trial = subprocess.Popen(
        [sys.executable, "-P", "-c", _TRY_TORCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        # before torch is looked for: its import is load of our own making
        load = os.getloadavg()[0]
        interface = interface_of(address) or ""
        state = psutil.net_if_stats().get(interface)
        memory = psutil.virtual_memory()
        shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - a mount, not a file
        free_ports, ports_problem = _ports(address)
        took_s, torch_problem = _finish(trial, torch_s)
    finally:
        trial.kill()
        trial.communicate()
    return HostFacts(
        host=socket.gethostname(),
        address=address,
        interface=interface,
        speed_mbit=state.speed if state is not None else 0,
        shoal=_version("shoal"),
        python=platform.python_version(),
        torch=_version("torch"),
        torch_problem=torch_problem,
        torch_s=round(took_s, 2),
        cores=len(os.sched_getaffinity(0)),
        load=round(load, 2),
        memory_bytes=memory.total,
        available_bytes=memory.available,
        shm_bytes=shm.total if shm is not None else 0,
        shm_free_bytes=shm.free if shm is not None else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        free_ports=free_ports,
        ports_problem=ports_problem,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _finish(trial: subprocess.Popen[str], wait_s: float) -> tuple[float, str]:
    try:
        out, error = trial.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired:
        return TORCH_S, ""
    if trial.returncode == 0:
        return float(out), ""
    last = (error.strip().splitlines() or [f"its import ended with status {trial.returncode}"])[-1]
    return 0.0, last[:200]


def _ports(address: str) -> tuple[int, str]:
    """How many ports the kernel may give to who asks for any, and why none could be had."""
    low, high = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    try:
        with socket.create_server((address, 0)):
            pass
    except OSError as error:
        return 0, f"nothing can listen on {address} ({error.strerror})"
    try:
        used = {one.laddr.port for one in psutil.net_connections("tcp4") if one.laddr}
    except psutil.AccessDenied:  # those of others are not ours to see
        used = set()
    return high - low + 1 - sum(low <= port <= high for port in used), ""
