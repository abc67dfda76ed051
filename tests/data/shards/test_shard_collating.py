"""Images that several threads decode: each in its place, and a bad one named by its number."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from shard_cases import write_data_set

from shoal.core.errors import ConfigError
from shoal.data.shards import ShardSource
from shoal.data.shards.collating import _WORTH_A_THREAD, Collator
from shoal.data.shards.images import decode_image

pytestmark = pytest.mark.unit
COUNT = 96


def pictures() -> list[bytes]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(COUNT):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(file, "JPEG", quality=95)
        made.append(file.getvalue())
    return made


def collated(folder: Path, images: list[bytes]) -> np.ndarray:
    write_data_set(folder, [[pa.table({"image": images})]], pa.schema({"image": pa.binary()}))
    source = ShardSource(folder)
    assert sum(map(len, images)) > 3 * _WORTH_A_THREAD, "or one thread does it all"
    with ThreadPoolExecutor(3) as pool:
        collate = Collator(source._columns, source._where, pool, 3)
        shuffled = np.random.default_rng(1).permutation(COUNT)
        values = source._reader.read(0)
        assert values is not None
        (tensor,) = collate([(values, shuffled, np.arange(COUNT))], shuffled)
        assert len(pool._threads) > 1, "several have worked"
    return tensor.numpy()[np.argsort(shuffled)]


def test_every_image_is_where_it_belongs(tmp_path: Path) -> None:
    images = pictures()
    expected = np.stack([decode_image(one).transpose(2, 0, 1) for one in images])
    assert np.array_equal(collated(tmp_path, images), expected)


@pytest.mark.parametrize("bad", [0, 50, COUNT - 1])
def test_a_bad_one_is_named_whichever_thread_met_it(tmp_path: Path, bad: int) -> None:
    images = pictures()
    images[bad] = b"no image" * 400
    with pytest.raises(ConfigError, match=rf"column image of sample {bad} \(row group 0 of .*is no image"):
        collated(tmp_path, images)
