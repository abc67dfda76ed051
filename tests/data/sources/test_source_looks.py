"""A source can be looked at, and says what is wrong with its samples by their names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import shoal.data
from shoal.core.errors import ConfigError, UserError
from shoal.data.sample_schema import describe_non_finite

pytestmark = pytest.mark.unit


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text("n,x,y\n1,0.5,0\n2,1.5,1\n3,2.5,0\n")
    return tmp_path / "rows.csv"


def test_a_source_can_be_looked_at(table: Path) -> None:
    source = shoal.data.open(table, columns=[("n", "x"), "y"])
    assert len(source) == 3
    assert repr(source) == "<TableSource of 3 samples (n, x: float32[2], y: int64)>"
    assert [(one.name, one.type, one.shape) for one in source.schema] == [("n, x", "float32", (2,)), ("y", "int64", ())]
    row, label = source[1]
    assert (row.tolist(), label.item()) == ([2.0, 1.5], 1)
    assert source[-1][1].item() == 0
    assert [label.item() for _, label in source] == [0, 1, 0]
    with pytest.raises(IndexError):
        source[3]
    assert "[1:3]" not in repr(shoal.data.open(table, "[1:3]"))
    assert repr(shoal.data.open(table, "[1:3]")).startswith("<SlicedSource of 2 samples (n: int64, x: float32")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)),
            "<TensorSource of 4 samples (0: float32[3], 1: int64)>",
        ),
        (torch.zeros(4, 3), "<TensorSource of 4 samples (0: float32[3])>"),
        ({"a": np.zeros((2, 2), np.float32)}, "<ColumnSource of 2 samples (a: float32[2])>"),
        ([{"text": "word", "y": 1}], "<MappedSource of 1 samples (text: str, y: int64)>"),
    ],
)
def test_all_kinds_of_sources_say_what_they_are(data: object, words: str) -> None:
    assert repr(shoal.data.open(data)) == words


def test_a_source_that_cannot_be_read_can_be_printed() -> None:
    class Broken(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> object:
            raise OSError("the disk is gone")

    assert repr(shoal.data.open(Broken())) == "<MappedSource of 2 samples (cannot be read: the disk is gone)>"


def test_a_list_of_samples_is_data() -> None:
    source = shoal.data.open([(torch.full((2,), float(at)), at) for at in range(5)])
    x, y = source.fetch(np.array([3, 1]), 0, 0)
    assert (x.tolist(), y.tolist()) == ([[3.0, 3.0], [1.0, 1.0]], [3, 1])


@pytest.mark.parametrize("prepared", [False, True])
def test_a_group_of_one_column_is_a_row_of_one(prepared: bool, table: Path, tmp_path: Path) -> None:
    place = table
    if prepared:
        shoal.data.prepare(table, tmp_path / "set", shards=1)
        place = tmp_path / "set"
    x, y = shoal.data.open(place, columns=[("n",), "y"]).fetch(np.arange(3), 0, 0)
    assert (x.shape, x.dtype, y.shape) == ((3, 1), torch.float32, (3,))
    with pytest.raises(ConfigError, match="empty group"):
        shoal.data.open(place, columns=[(), "y"])


def test_empty_whole_numbers_come_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("n,y\n1,0\n,1\n3,\n")
    with pytest.raises(UserError, match=r"column 'n' has 1 empty values.*--job fill:columns=n:value=0"):
        shoal.data.open(tmp_path / "rows.csv", columns=["n"])


class TestImages:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name, size in (("a/one.png", (8, 8)), ("a/three.png", (8, 8)), ("b/two.png", (8, 6))):  # width, height
            (tmp_path / name).parent.mkdir(exist_ok=True)
            Image.new("RGB", size, (10, 200, 10)).save(tmp_path / name)
        return tmp_path

    @pytest.mark.parametrize("memory_mib", [512, 0])
    def test_the_image_of_another_size_is_named(self, folder: Path, memory_mib: int) -> None:
        source = shoal.data.open(folder, memory_mib=memory_mib)
        with pytest.raises(ConfigError) as failed:
            source.fetch(np.array([0, 1, 2]), 0, 0)
        words = str(failed.value)
        assert re.search(r"sample 0 \(\S*a/one.png\) is 8x8 pixels, sample 2 \(\S*b/two.png\) is 6x8", words), words
        assert "decode={'image': shoal.data.Resize(8, 8)}" in words
        assert "--job resize:columns=image:size=8x8" in words

    def test_the_remedy_works(self, folder: Path) -> None:
        images, _ = shoal.data.open(folder, decode={"image": shoal.data.Resize(4, 5)}).fetch(np.arange(3), 0, 0)
        assert (images.shape, images.dtype) == ((3, 3, 4, 5), torch.uint8)
        assert images[:, 1].unique().tolist() == [200]

    def test_what_is_no_image_is_named(self, folder: Path) -> None:
        (folder / "b" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
        for decode in ({}, {"image": shoal.data.Resize(4, 4)}):
            with pytest.raises(ConfigError, match=r"b/bad.png\) is no image"):
                shoal.data.open(folder, decode=decode).fetch(np.arange(4), 0, 0)

    def test_shapes_that_differ_are_named(self, folder: Path) -> None:
        source = shoal.data.open(folder, decode={"image": lambda data: torch.zeros(data[23])}, memory_mib=0)
        with pytest.raises(ConfigError, match=r"b/two.png\) becomes a tensor of shape .* must give all the same shape"):
            source.fetch(np.array([0, 2]), 0, 0)


def test_values_that_are_not_finite_are_found_by_name() -> None:
    x = torch.zeros(3, 2)
    batch = (x, torch.zeros(3))
    assert describe_non_finite(batch, ("age, hour", "y"), [7, 8, 9]) is None
    x[1, 0], x[2, 1] = float("nan"), float("inf")
    assert describe_non_finite(batch, ("age, hour", "y"), [7, 8, 9]) == (
        "age, hour of the data has NaN in sample 8 (and 1 more of that step)"
    )
    x[1, 0] = 0
    assert describe_non_finite(batch, None, [7, 8, 9]) == "part 0 of the data has an infinite value in sample 9"
    assert describe_non_finite({"x": x}, None, [7, 8, 9]) == "part x of the data has an infinite value in sample 9"
