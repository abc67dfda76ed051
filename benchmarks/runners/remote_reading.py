"""The loader alone reads one prepared data set for a few epochs, in a process of its own; writes what each took.

Called by benchmarks/remote_reading.py. Nothing is kept between epochs: no cache on disk, and too little memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

MEMORY_MIB = 64.0  # at most
PART = 6  # of the data set at most


def main() -> None:
    os.sched_setaffinity(0, {int(core) for core in sys.argv[5].split(",")})
    from shoal.core.config import LoaderSettings
    from shoal.core.cursor import Batches
    from shoal.data.loader import Loader, Request
    from shoal.data.shards import ShardSource

    torch.set_num_threads(1)
    url, batch, epochs, answer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    source = ShardSource(url, settings=LoaderSettings(memory_mib=MEMORY_MIB, cache_mib=0))
    memory_mib = min(MEMORY_MIB, source.data.blocks.nbytes / PART / 2**20)
    source = ShardSource(url, settings=LoaderSettings(memory_mib=memory_mib, cache_mib=0))
    samples = len(source)
    loader = Loader(source, 1, batches=Batches(samples, batch, max(1, batch // 64)))
    taken = []
    for epoch in range(epochs):
        before, begun, count = source.bytes_read, time.perf_counter(), 0
        requests = (Request(epoch, at, min(at + batch, samples)) for at in range(0, samples, batch))
        for loaded in loader.stream(requests):
            count += len(loaded.batch[0])
        assert count == samples
        seconds = time.perf_counter() - begun
        taken.append({"samples": count, "seconds": seconds, "bytes": source.bytes_read - before})
    loader.close()
    answer.write_text(json.dumps(taken))


if __name__ == "__main__":
    main()
