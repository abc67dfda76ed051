"""Transforms: the same bits in any company, drawn for the sample or for the grain."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError
from shoal.core.many_seeds import sample_seeds, stage_seeds
from shoal.core.order import Indices, Order, WholeOrder
from shoal.core.seeds import sample_seed, stage_seed
from shoal.data import Draws, Rowwise, Source, augment, open_source, stream, transform

pytestmark = pytest.mark.unit

SAMPLES = 12
IMAGES = torch.randint(0, 256, (SAMPLES, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(SAMPLES)


def at(*numbers: int) -> Indices:
    return np.array(numbers, dtype=np.int64)


class Rows(Dataset[Any]):
    """A map-style dataset that draws itself."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return IMAGES[index], float(torch.rand(())), f"name {index}"


class Flowing(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(image, 0.0, "name") for image in IMAGES])


def noise(sample: Any, generator: torch.Generator) -> Any:
    """Draws from all that may be drawn from, a different number of times for each sample."""
    image, *rest = sample
    for _ in range(int(image.sum()) % 3):
        torch.rand(1), random.random(), np.random.random(), torch.rand(1, generator=generator)
    drawn = torch.rand((), generator=generator) + torch.rand(()) + random.random() + np.random.random()
    return image, *rest, drawn


class Shift(Rowwise):
    def __call__(self, batch: Any, draws: Draws) -> Any:
        images = batch[0].float() + draws.uniform(1, 1, 1) + draws.integers(0, 5, 1, 1, 1)
        return (images, *batch[1:])


def flat(batch: Any) -> list[Tensor]:
    return [part for part in batch if isinstance(part, Tensor)]


SOURCES: dict[str, Any] = {"tensors": (IMAGES, LABELS), "dataset": Rows(), "stream": Flowing()}
STAGES: dict[str, Any] = {
    "function": noise,
    "rowwise": Shift(),
    "both": [noise, Shift()],
    "there and back": [Shift(), noise, augment.RandomCrop(1), noise],
    "images": [augment.RandomCrop(2), augment.RandomFlip(), augment.Normalise([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])],
}


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("data", SOURCES)
@settings(max_examples=6)
@given(order=st.permutations(range(SAMPLES)), size=st.integers(1, 7))
def test_a_sample_has_the_same_bits_in_any_company(data: str, stages: str, order: list[int], size: int) -> None:
    source = transform(SOURCES[data], per_sample=STAGES[stages])
    whole = flat(source.fetch(at(*range(SAMPLES)), 3, 5))
    for start in range(0, SAMPLES, size):
        part = order[start : start + size]
        for found, expected in zip(flat(source.fetch(at(*part), 3, 5)), whole, strict=True):
            assert torch.equal(found, expected[part])


@pytest.mark.parametrize("stages", STAGES)
def test_seed_epoch_and_sample_decide_what_is_drawn(stages: str) -> None:
    alike = (IMAGES[:1].expand(SAMPLES, -1, -1, -1), LABELS * 0)
    source = transform(alike, per_sample=STAGES[stages])
    seen = set()
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        parts = flat(source.fetch(at(*range(SAMPLES)), epoch, seed))
        seen.update(b"".join(part[row].numpy().tobytes() for part in parts) for row in range(SAMPLES))
    assert len(seen) > (20 if stages == "images" else 35)  # of 36, for which there are 50 ways to crop and mirror


def test_stages_the_generator_and_the_dataset_draw_different_numbers() -> None:
    drawn: list[float] = []

    class One(Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> float:
            drawn.append(float(torch.rand(())))
            return 0.0

    def draw(sample: Any, generator: torch.Generator) -> Any:
        drawn.extend([float(torch.rand(())), float(torch.rand((), generator=generator))])
        return sample

    transform(One(), per_sample=[draw, draw], per_batch=draw).fetch(at(0), 0, 0)
    assert len(set(drawn)) == len(drawn) == 7


def test_the_generators_are_left_as_they_were() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=True)[1].tolist()  # type: ignore[index]
    transform(Rows(), per_sample=noise).fetch(at(0, 1), 0, 0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state(legacy=True)[1].tolist()) == before[1:]  # type: ignore[index]


def mix_up(batch: Any, generator: torch.Generator) -> Any:
    images, labels = batch
    other = torch.randperm(len(images), generator=generator)
    share = torch.rand((), generator=generator)
    return share * images.float() + (1 - share) * images[other].float(), labels, labels[other]


def test_what_mixes_samples_draws_for_the_grain() -> None:
    source = transform((IMAGES, LABELS), per_batch=mix_up)
    grain = at(5, 2, 9, 1)
    again = transform((IMAGES, LABELS), per_batch=mix_up)
    again.fetch(at(1, 2), 0, 0)
    for found, expected in zip(again.fetch(grain, 1, 7), source.fetch(grain, 1, 7), strict=True):
        assert torch.equal(found, expected)
    mixed = {source.fetch(grain, epoch, seed)[0].numpy().tobytes() for epoch in (0, 1) for seed in (0, 1)}
    assert len(mixed) == 4
    assert source.grouped == "the data is transformed per batch (mix_up)"
    assert transform(source, per_sample=noise).grouped == source.grouped
    assert transform((IMAGES, LABELS), per_sample=noise).grouped is None


def test_a_transform_is_as_its_source_in_length_order_and_digest() -> None:
    class Ordered(Source):
        digest = "abc"

        def __len__(self) -> int:
            return 4

        def fetch(self, indices: Indices, epoch: int, seed: int) -> Any:
            return torch.from_numpy(indices.copy())

        def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
            return WholeOrder(seed, 4, shuffle=False)

    source = transform(Ordered(), per_sample=lambda sample, generator: sample + 1)
    assert (len(source), source.digest) == (4, "abc")
    assert source.order(0, True).at(0, 0, 4).tolist() == [0, 1, 2, 3]
    assert source.fetch(at(3, 1), 0, 0).tolist() == [4, 2]


def test_samples_of_different_shapes_can_be_made_equal_before_they_are_collated() -> None:
    lengths = stream([torch.arange(n) for n in range(1, 6)])
    source = transform(lengths, per_sample=lambda sample, generator: sample[:1])
    assert source.fetch(at(0, 4), 0, 0).tolist() == [[0], [0]]


def test_samples_of_dicts_keep_their_text() -> None:
    def shout(sample: Any, generator: torch.Generator) -> Any:
        return {**sample, "name": sample["name"].upper()}

    source = transform(stream([{"name": "a", "x": 1}, {"name": "b", "x": 2}]), per_sample=[shout, shout])
    batch = source.fetch(at(1, 0), 0, 0)
    assert batch["name"] == ["B", "A"]
    assert batch["x"].tolist() == [2, 1]


def test_transforms_may_be_stacked_and_travel() -> None:
    inner = transform(Rows(), per_sample=augment.ToFloat())
    source = pickle.loads(pickle.dumps(transform(inner, per_sample=noise)))
    image, _, name, drawn = source.fetch(at(1, 2), 0, 0)
    assert torch.equal(image, IMAGES[1:3].float() * (1 / 255))
    assert (list(name), drawn.shape) == (["name 1", "name 2"], (2,))


class Centre(Rowwise):
    """Looks at all rows."""

    def __call__(self, batch: Any, draws: Draws) -> Any:
        return {**batch, "image": batch["image"].float() - batch["image"].float().mean()}


class Own(Rowwise):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, batch: Any, draws: Draws) -> Any:
        return {**batch, "label": batch["label"] + torch.randint(0, 2**40, (), generator=self.generator)}


@pytest.mark.parametrize("function", [Centre(), Own()])
def test_a_rowwise_that_does_not_treat_each_row_alone_is_refused(function: Rowwise) -> None:
    source = transform({"image": IMAGES, "label": LABELS}, per_sample=[augment.ToFloat(of="image"), function])
    with pytest.raises(ConfigError, match=f"{type(function).__name__} gives a sample other values among others"):
        source.fetch(at(1, 2), 0, 0)


def test_an_error_names_the_transform_and_the_sample() -> None:
    def fails(sample: Any, generator: torch.Generator) -> Any:
        return sample[7]

    with pytest.raises(IndexError) as caught:
        transform((IMAGES, LABELS), per_sample=fails).fetch(at(4), 0, 0)
    assert caught.value.__notes__ == ["in the transform fails, of sample 4"]
    with pytest.raises(IndexError) as caught:
        transform((IMAGES, LABELS), per_batch=fails).fetch(at(4, 5), 0, 0)
    assert caught.value.__notes__ == ["in the transform fails, of the 2 samples from 4 on"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: transform(IMAGES, per_sample=5), "5 cannot be called"),
        (lambda: transform(IMAGES, per_batch=augment.RandomFlip()), "give it as per_sample"),
        (lambda: transform(None, per_sample=noise), "transformed data is of type NoneType"),
        (lambda: transform(torch.zeros(4, 2), per_sample=augment.ToFloat()).fetch(at(0), 0, 0), "ToFloat.*images are"),
        (
            lambda: transform({"image": IMAGES}, per_sample=augment.ToFloat()).fetch(at(0), 0, 0),
            "name the image.*'image'",
        ),
        (
            lambda: transform(IMAGES, per_sample=augment.Normalise([0.5], [0.5])).fetch(at(0), 0, 0),
            "1 means and 1 deviations for 3 channels",
        ),
    ],
)
def test_what_cannot_be_done_is_told(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        make()


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_seeds_of_many_samples_are_those_of_each(seed: int, epoch: int, samples: list[int]) -> None:
    seeds = sample_seeds(seed, epoch, at(*samples))
    assert seeds.tolist() == [sample_seed(seed, epoch, sample) for sample in samples]
    assert stage_seeds(seeds, 3).tolist() == [stage_seed(int(one), 3) for one in seeds]


def test_draws_are_even_and_within_their_range() -> None:
    draws = Draws(sample_seeds(1, 2, np.arange(10_000)))
    uniform = draws.uniform(2)
    assert uniform.shape == (10_000, 2)
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert abs(float(torch.corrcoef(uniform.T)[0, 1])) < 0.03
    assert abs(float(uniform.double().mean()) - 0.5) < 0.01
    counts = Counter(draws.integers(-2, 3).tolist())
    assert sorted(counts) == [-2, -1, 0, 1, 2]
    assert min(counts.values()) > 1800
    assert 0.27 < float(draws.chance(0.3).float().mean()) < 0.33


def test_a_crop_is_one_of_the_parts_of_the_padded_image_and_all_of_them_come() -> None:
    many = IMAGES[:1].expand(500, -1, -1, -1)
    padded = torch.nn.functional.pad(IMAGES[0], (1, 1, 1, 1))
    parts = {padded[:, top : top + 6, left : left + 5].numpy().tobytes() for top in range(3) for left in range(3)}
    cropped = transform(many, per_sample=augment.RandomCrop(1)).fetch(np.arange(500), 0, 0)
    assert cropped.shape == many.shape
    assert {image.numpy().tobytes() for image in cropped} == parts


def test_about_half_of_the_images_are_mirrored_and_the_others_are_not() -> None:
    many = IMAGES[:1].expand(1000, -1, -1, -1)
    flipped = transform(many, per_sample=augment.RandomFlip()).fetch(np.arange(1000), 0, 0)
    mirrored = [torch.equal(image, IMAGES[0].flip(2)) for image in flipped]
    assert 420 < sum(mirrored) < 580
    assert sum(torch.equal(image, IMAGES[0]) for image in flipped) == 1000 - sum(mirrored)
    always = transform({"image": IMAGES}, per_sample=augment.RandomFlip(1.0, of="image")).fetch(at(3), 0, 0)
    assert torch.equal(always["image"][0], IMAGES[3].flip(2))


def test_images_become_float_and_are_normalised_by_channel() -> None:
    mean, deviation = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    expected = (IMAGES[2:4].double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(deviation).view(3, 1, 1)
    for stages in ([augment.Normalise(mean, deviation)], [augment.ToFloat(), augment.Normalise(mean, deviation)]):
        found = transform(IMAGES, per_sample=stages).fetch(at(2, 3), 0, 0)
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), expected, atol=1e-6)


def test_plain_data_needs_no_functions() -> None:
    assert torch.equal(transform(IMAGES).fetch(at(1), 0, 0), open_source(IMAGES, "train").fetch(at(1), 0, 0))
