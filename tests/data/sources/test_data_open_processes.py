"""Opened files in loader processes: the same bits as in this one, from a disk and from the web."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from web_server import serving

import shoal
from shoal.data import Source
from shoal.data.loader import Loader, Request

pytestmark = pytest.mark.ranks


def batches(source: Source, processes: int) -> list[tuple[torch.Tensor, ...]]:
    loader = Loader(source, 3, processes=processes)
    try:
        requests = [Request(1, start, start + 500) for start in range(0, len(source), 500)]
        return [loaded.batch for loaded in loader.stream(requests)]
    finally:
        loader.close()


def test_loader_processes_read_files_as_this_one_does(tmp_path: Path) -> None:
    numbers = np.arange(20_000)
    table = pa.table({"x": numbers / 4, "label": numbers % 5})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=1000)
    with serving(tmp_path) as web:
        for where in (str(tmp_path / "data.parquet"), f"{web.url}/data.parquet"):
            for memory_mib in (0, 512):  # by pieces, and in memory
                source = shoal.data.open(where, "[:50%]", memory_mib=memory_mib)
                here, elsewhere = batches(source, 0), batches(source, 2)
                assert len(here) == 20
                assert all(
                    torch.equal(one, other)
                    for pair in zip(here, elsewhere, strict=True)
                    for one, other in zip(*pair, strict=True)
                )
