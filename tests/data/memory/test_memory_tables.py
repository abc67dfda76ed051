"""Data frames, Arrow tables and dicts of arrays: samples by column, and what cannot be one is named."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import Dataset

from shoal.core.errors import ConfigError
from shoal.core.order import Indices
from shoal.data import open_source, select

pytestmark = pytest.mark.unit


def at(*numbers: int) -> Indices:
    return np.array(numbers, dtype=np.int64)


def plain(batch: dict[str, Any]) -> dict[str, tuple[Any, torch.dtype]]:
    return {key: (column.tolist(), column.dtype) for key, column in batch.items()}


FRAME = pd.DataFrame(
    {"age": [30, 40, 50], "height": [1.5, 1.75, 2.0], "member": [True, False, True]}, index=["a", "b", "c"]
)
ROWS_2_0 = {
    "age": ([50, 30], torch.int64),
    "height": ([2.0, 1.5], torch.float32),
    "member": ([True, True], torch.bool),
}


@pytest.mark.parametrize(
    "data",
    [
        FRAME,
        FRAME.convert_dtypes(),
        pa.Table.from_pandas(FRAME, preserve_index=False),
        pa.RecordBatch.from_pandas(FRAME, preserve_index=False),
        pa.concat_tables([pa.Table.from_pandas(FRAME[part], preserve_index=False) for part in (slice(1), slice(1, 3))]),
        FRAME.astype({"age": "uint16", "height": "float32"}),
        {
            "age": np.array([30, 40, 50]),
            "height": np.float32([1.5, 1.75, 2.0]),
            "member": np.array([True, False, True]),
        },
        {
            "age": torch.tensor([30, 40, 50]),
            "height": torch.tensor([1.5, 1.75, 2.0]),
            "member": torch.tensor([True, False, True]),
        },
    ],
    ids=["pandas", "pandas nullable", "table", "record batch", "table of chunks", "other widths", "arrays", "tensors"],
)
def test_samples_are_dicts_by_column_of_the_types_that_models_take(data: object) -> None:
    source = open_source(data, "train")
    assert len(source) == 3
    assert plain(source.fetch(at(2, 0), 0, 0)) == ROWS_2_0


def test_bytes_stay_bytes_and_arrays_keep_their_types() -> None:
    table = pa.table({"image": pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8(), 2))})
    assert open_source(table, "train").fetch(at(0), 0, 0)["image"].dtype == torch.uint8
    assert open_source({"x": np.zeros(3)}, "train").fetch(at(0), 0, 0)["x"].dtype == torch.float64


def test_a_fetched_batch_may_be_changed() -> None:
    source = open_source(FRAME, "train")
    source.fetch(at(0, 1, 2), 0, 0)["age"].zero_()
    assert source.fetch(at(0), 0, 0)["age"].tolist() == [30]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32())),
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        pa.array([[1, 2], [3, 4], [5, 6]], pa.large_list(pa.int32())),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(1, 7, dtype=np.int32).reshape(3, 2)),
    ],
)
def test_lists_in_arrow_tables_are_further_dimensions(column: Any) -> None:
    source = open_source(pa.table({"x": column}), "train")
    assert source.fetch(at(1, 2), 0, 0)["x"].tolist() == [[3, 4], [5, 6]]


def test_lists_of_lists_and_parts_of_tables_keep_their_shape() -> None:
    table = pa.table({"x": pa.array([[[row, 1], [2, 3], [4, 5]] for row in range(5)])}).slice(2, 2)
    assert open_source(table, "train").fetch(at(1), 0, 0)["x"].tolist() == [[[3, 1], [2, 3], [4, 5]]]


def test_arrays_in_a_data_frame_are_further_dimensions() -> None:
    frame = pd.DataFrame({"x": [np.full((2, 2), row) for row in range(3)]})
    assert open_source(frame, "train").fetch(at(2), 0, 0)["x"].tolist() == [[[2, 2], [2, 2]]]


def test_dictionaries_of_numbers_and_wide_unsigned_integers_become_plain_numbers() -> None:
    table = pa.table({"d": pa.array([7, 8, 7]).dictionary_encode(), "u": pa.array([1, 2, 3], pa.uint32())})
    assert plain(open_source(table, "train").fetch(at(1, 2), 0, 0)) == {
        "d": ([8, 7], torch.int64),
        "u": ([2, 3], torch.int64),
    }


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pd.DataFrame({"x": [1], "name": ["ann"]}), "column 'name'.*not of numbers"),
        (pd.DataFrame({"when": pd.to_datetime(["2020-01-01"])}), "column 'when'.*datetime"),
        (pd.DataFrame({"kind": pd.Categorical(["a"])}), "column 'kind'.*category"),
        (pd.DataFrame({"x": [1.0, None, 2.0, None]}), "'x'.*2 missing values, the first in row 1"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), "more than one column 'x'"),
        (pd.DataFrame({"x": [np.zeros(2), np.zeros(3)]}), "'x'.*differ in shape"),
        (pa.table({"x": [1], "name": ["ann"]}), "column 'name'.*string, not of numbers"),
        (pa.table({"x": pa.array([1, None])}), "'x'.*1 missing values, the first in row 1"),
        (pa.table({"x": [[1], [1, 2]]}), "'x'.*lists of 1 to 2 items"),
        (pa.table({"x": [["a"], ["b"]]}), "'x'.*not of numbers"),
        (pa.table([[1], [2]], names=["x", "x"]), "more than one column 'x'"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "'x' has 3, 'y' has 4 rows"),
        ({"x": np.array(["a", "b"])}, "column 'x'.*not of numbers"),
        ({"x": np.array([2**64 - 1], dtype=np.uint64)}, "column 'x'.*past 2"),
        ({"x": [1, 2]}, "column 'x'.*list: give a tensor or an array"),
        ({"x": torch.tensor(1.0)}, "column 'x'.*single number"),
        ({}, "no columns"),
        (pd.DataFrame({"x": np.zeros(0)}), "empty"),
    ],
)
def test_a_column_that_cannot_be_used_is_named(data: object, says: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)(train data.*)?{says}"):
        open_source(data, "train")


def test_select_puts_columns_side_by_side_and_gives_input_and_target() -> None:
    for inputs in (["age", "height"], None):
        data = FRAME.drop(columns="member")
        source = select(data.assign(label=[0, 1, 2]), inputs, "label")
        x, y = source.fetch(at(2, 0), 0, 0)
        assert (x.tolist(), x.dtype) == ([[50.0, 2.0], [30.0, 1.5]], torch.float32)
        assert (y.tolist(), y.dtype) == ([2, 0], torch.int64)


def test_select_leaves_a_single_column_as_it_is_but_for_floats() -> None:
    images = torch.arange(24, dtype=torch.uint8).reshape(3, 2, 4)
    x, y = select({"image": images, "height": np.array([1.0, 2.0, 3.0])}, "image", "height").fetch(at(1), 0, 0)
    assert torch.equal(x, images[1:2])
    assert (y.tolist(), y.dtype) == ([2.0], torch.float32)


def test_select_works_on_any_source_of_dicts() -> None:
    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": torch.full((2,), index), "z": float(index), "y": index, "name": "n"}

    x, y = select(Rows(), ["x", "z"], "y").fetch(at(3, 1), 0, 0)
    assert x.tolist() == [[3.0, 3.0, 3.0], [1.0, 1.0, 1.0]]
    assert y.tolist() == [3, 1]
    with pytest.raises(ConfigError, match=r"'name'.*no tensor"):
        select(Rows(), "name", "y").fetch(at(0), 0, 0)
    with pytest.raises(ConfigError, match="name the columns"):
        select(Rows(), None, "y")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (("agee", "height"), "did you mean 'age'"),
        (("age", "label"), "no column 'label'"),
        (([], "age"), "left to be put side by side"),
        ((None, "age", ["height", "member"]), "left to be put side by side"),
        ((), "no columns"),
    ],
)
def test_select_names_what_is_not_there(columns: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        select(FRAME, *columns)


def test_select_may_give_more_than_one_input() -> None:
    age, rest, member = select(FRAME.assign(z=1), "age", None, "member").fetch(at(1), 0, 0)
    assert (age.tolist(), rest.tolist(), member.tolist()) == ([40], [[1.75, 1.0]], [False])


def test_select_of_samples_that_are_no_dicts_is_refused() -> None:
    with pytest.raises(ConfigError, match="no dicts"):
        select(torch.zeros(3, 2), "x", "y").fetch(at(0), 0, 0)


def test_none_of_the_libraries_is_imported_for_data_that_is_not_theirs() -> None:
    code = (
        "import sys, torch, shoal.data; shoal.data.open_source({'x': torch.zeros(3)}, 'train');"
        "print([name for name in ('pandas', 'pyarrow', 'datasets', 'fsspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
