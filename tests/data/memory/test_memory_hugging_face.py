"""Hugging Face datasets: read by the batch, as tensors, with images decoded."""

from __future__ import annotations

import pickle
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
import torch

from shoal.core.errors import ConfigError
from shoal.core.order import Indices
from shoal.data import open_source, select, stream, transform

pytestmark = pytest.mark.unit

TABLE = {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "label": [0, 1, 2], "name": ["a", "b", "c"]}


def at(*numbers: int) -> Indices:
    return np.array(numbers, dtype=np.int64)


def test_batches_are_dicts_of_tensors_and_text() -> None:
    source = open_source(datasets.Dataset.from_dict(TABLE), "train")
    assert len(source) == 3
    batch = source.fetch(at(2, 0), 0, 0)
    assert list(batch) == ["x", "label", "name"]
    assert torch.equal(batch["x"], torch.tensor([[5.0, 6.0], [1.0, 2.0]]))
    assert torch.equal(batch["label"], torch.tensor([2, 0]))
    assert batch["name"] == ["c", "a"]


def test_samples_of_a_batch_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = datasets.Dataset.__getitem__

    def watched(self: datasets.Dataset, key: Any) -> Any:
        asked.append(key)
        return real(self, key)

    monkeypatch.setattr(datasets.Dataset, "__getitem__", watched)
    open_source(datasets.Dataset.from_dict(TABLE), "train").fetch(at(2, 0, 1), 0, 0)
    assert asked == [[2, 0, 1], [2, 0, 1]]  # numbers and text


def test_images_are_decoded_to_bytes_by_channel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    images = [PIL.Image.fromarray(one) for one in pixels]
    source = open_source(datasets.Dataset.from_dict({"image": images, "label": [3, 4, 5]}, features=features), "train")
    image, label = select(source, "image", "label").fetch(at(1, 2), 0, 0)
    assert image.dtype == torch.uint8
    assert image.numpy().tolist() == pixels[1:].transpose(0, 3, 1, 2).tolist()
    assert label.tolist() == [4, 5]


def test_what_the_user_has_chosen_of_columns_and_types_holds() -> None:
    data = datasets.Dataset.from_dict(TABLE)
    assert list(open_source(data.with_format("numpy", columns=["label"]), "train").fetch(at(0), 0, 0)) == ["label"]
    doubled = open_source(data.with_format("torch", columns=["x"], dtype=torch.float64), "train")
    assert doubled.fetch(at(0), 0, 0)["x"].dtype == torch.float64


def test_a_transform_of_the_dataset_draws_for_each_sample() -> None:
    def noisy(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": [torch.tensor(x) + torch.rand(2) for x in batch["x"]]}

    source = open_source(datasets.Dataset.from_dict(TABLE).with_transform(noisy), "train")
    together = source.fetch(at(0, 1, 2), 0, 0)["x"]
    alone = [source.fetch(at(number), 0, 0)["x"][0] for number in (2, 0, 1)]
    assert torch.equal(together[[2, 0, 1]], torch.stack(alone))


def test_samples_that_differ_in_shape_need_a_transform() -> None:
    data = datasets.Dataset.from_dict({"tokens": [[1], [1, 2], [1, 2, 3]]})
    with pytest.raises(ConfigError, match=r"'tokens' of the train data.*differ in shape"):
        open_source(data, "train").fetch(at(0, 1), 0, 0)

    def pad(sample: Any, generator: torch.Generator) -> Any:
        tokens = sample["tokens"]
        return torch.nn.functional.pad(tokens, (0, 3 - len(tokens)))

    assert transform(data, per_sample=pad).fetch(at(0, 2), 0, 0).tolist() == [[1, 0, 0], [1, 2, 3]]


def test_streams_are_read_into_a_data_set() -> None:
    flowing = datasets.Dataset.from_dict(TABLE).to_iterable_dataset(num_shards=2).shuffle(seed=1, buffer_size=2)
    source = open_source(flowing, "train")
    assert len(source) == 3
    batch = source.fetch(at(0, 1, 2), 0, 0)
    assert sorted(batch["label"].tolist()) == [0, 1, 2]
    assert sorted(batch["name"]) == ["a", "b", "c"]
    assert batch["x"].shape == (3, 2)
    assert source.digest == open_source(flowing, "train").digest
    assert len(stream(flowing, samples=2)) == 2


def test_a_dataset_travels_to_workers() -> None:
    source = pickle.loads(pickle.dumps(open_source(datasets.Dataset.from_dict(TABLE), "train")))
    assert source.fetch(at(1), 0, 0)["label"].tolist() == [1]


def test_all_splits_at_once_are_refused_by_their_names() -> None:
    data = datasets.Dataset.from_dict(TABLE)
    with pytest.raises(ConfigError, match="DatasetDict: give one of its splits \\('train', 'test'\\)"):
        open_source(datasets.DatasetDict({"train": data, "test": data}), "train")


def test_columns_of_numbers_are_what_the_library_makes_of_them() -> None:
    columns: dict[str, list[Any]] = {
        "float": [0.5, 1.5, 2.5],
        "int": [1, 2, 3],
        "bool": [True, False, True],
        "list": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "nested": [[[1], [2]], [[3], [4]], [[5], [6]]],
        "gaps": [1.0, None, 2.0],
        "fixed": [[1, 2], [3, 4], [5, 6]],
        "small": [1, 2, 3],
    }
    features = datasets.Dataset.from_dict(columns).features.copy()
    features["fixed"] = datasets.List(datasets.Value("int32"), length=2)
    features["small"] = datasets.Value("uint8")
    data = datasets.Dataset.from_dict(columns, features=features).select([2, 1, 0])
    theirs = data.with_format("torch")[[2, 0, 1]]
    ours = open_source(data, "train").fetch(at(2, 0, 1), 0, 0)
    assert list(ours) == list(columns)
    for key, column in theirs.items():
        assert ours[key].dtype == column.dtype, key
        assert torch.equal(ours[key].nan_to_num(-1), column.nan_to_num(-1)), key
