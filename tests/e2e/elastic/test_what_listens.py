"""No one gets in: on which ports a run on one machine listens while it trains, as `ss` sees them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter

import pytest
from e2e import KeptNursery
from self_hurt import Trials, script

pytestmark = pytest.mark.ranks

# the first worker looks, in the middle of the run
LOOK = """
        if event.cursor.step == 14 and once('look'):
            import subprocess
            Path('seen').write_text(subprocess.run(['ss', '-ltnpH'], capture_output=True, text=True, check=True).stdout)
            Path('place').write_text((run.run_dir / 'coordinator.json').read_text())
"""


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_run_listens_on_loopback_only_and_has_no_store_port(
    trials: Trials, kept_nursery: KeptNursery, backend: str
) -> None:
    """The coordinator listens, and with gloo each worker once, for the others: a store would be one more."""
    if shutil.which("ss") is None:
        pytest.skip("the command `ss`, which lists listening ports, is not installed")
    done, run = trials.train(script(on_step=LOOK), "--workers", "3", "--set", f"comm.backend={backend}")
    assert done.status == 0, done.err
    place = json.loads((trials.shoal.directory / "place").read_text())
    (view,) = run.events("view")
    ours = {place["pid"], *view["pids"], kept_nursery.pid, os.getpid()}
    ports: Counter[int] = Counter()
    for line in (trials.shoal.directory / "seen").read_text().splitlines():
        holders = {int(pid) for pid in re.findall(r"pid=(\d+),", line)} & ours
        if holders:
            assert line.split()[3].startswith("127.0.0.1:"), line
            ports.update(holders)
    assert ports == dict.fromkeys([place["pid"], *(view["pids"] if backend == "gloo" else [])], 1)
