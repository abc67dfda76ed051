"""What a figure was measured on. Standard library only; versions are asked of the peers' interpreter."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_ASK = """
import importlib.metadata, json, platform, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
found = {name: version(name) for name in sys.argv[1:]}
print(json.dumps({"python": platform.python_version(), "versions": found}))
"""


def describe(python: Path, packages: Iterable[str]) -> dict[str, Any]:
    """Machine, interpreter and versions of `packages` (None where one is missing), as JSON."""
    asked = subprocess.run([str(python), "-c", _ASK, *packages], check=True, capture_output=True, text=True, timeout=60)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": list(os.getloadavg()),
        **json.loads(asked.stdout),
    }


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
