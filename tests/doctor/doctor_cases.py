"""A host with which all is well."""

from __future__ import annotations

from shoal.launch.doctor.facts import HostFacts
from shoal.launch.doctor.findings import GIB

GOOD = HostFacts(
    host="a",
    address="10.0.0.1",
    interface="eth0",
    speed_mbit=10000,
    shoal="0.1.0",
    python="3.11.2",
    torch="2.13.0",
    torch_problem="",
    torch_s=1.9,
    cores=8,
    load=0.3,
    memory_bytes=16 * GIB,
    available_bytes=12 * GIB,
    shm_bytes=8 * GIB,
    shm_free_bytes=8 * GIB,
    open_files=1024,
    free_ports=28000,
    ports_problem="",
)
