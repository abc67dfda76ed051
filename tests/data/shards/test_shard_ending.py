"""A process that ends in the middle of an epoch ends: threads that read ahead do not hold it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from shard_cases import write_data_set

from shoal.data.shards.lanes import Window
from shoal.data.shards.windows import Held, Windows

PATIENCE_S = 60.0

_HALF_AN_EPOCH = """
import sys, time
from shoal.core.config import LoaderSettings
from shoal.core.cursor import Batches
from shoal.data.loader import Loader, Request
from shoal.data.shards import ShardSource, decoding

class Slow(decoding._Part):  # so that the end comes while one is being read
    def read(self, size=-1):
        time.sleep(0.02)
        return super().read(size)

decoding._Part = Slow
data = ShardSource(sys.argv[1], settings=LoaderSettings(memory_mib=0.5))
loader = Loader(data, 1, batches=Batches(len(data), 64, 16))
print(sum(len(one.indices) for one in loader.stream(Request(0, at, at + 64) for at in range(0, 2048, 64))))
"""


@pytest.mark.ranks
def test_a_process_ends_while_blocks_are_being_decoded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    groups = [
        pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 1 << 62, 128 * 64)), 128)})
        for _ in range(64)
    ]
    write_data_set(tmp_path, [groups], groups[0].schema)
    for _ in range(3):
        words = [sys.executable, "-c", _HALF_AN_EPOCH, str(tmp_path)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (done.returncode, done.stdout, done.stderr) == (0, "2048\n", "")


def test_at_the_end_the_window_under_way_is_loaded_and_no_other() -> None:
    begun, may_end, loaded = threading.Event(), threading.Event(), []

    def load(window: Window) -> Held:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        loaded.append(window.number)
        return Held(window, [], np.arange(0))

    windows = Windows(load, 1 << 20, 1.0, threads=1)
    coming = [Window(0, 0, number, number * 8, number * 8 + 8, ()) for number in range(3)]
    windows.expect(coming, lambda window: False, lambda window: False, 1.0)
    assert begun.wait(PATIENCE_S)
    windows.end()
    windows.wait_ended(0.01)
    assert loaded == [], "it waits no longer than it may"
    may_end.set()
    windows.wait_ended(PATIENCE_S)
    windows.expect(coming, lambda window: False, lambda window: False, 1.0)
    windows.wait_ended(PATIENCE_S)
    assert loaded == [0]
