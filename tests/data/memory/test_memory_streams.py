"""Streams: read once into a spool, from then on a data set like any other; what cannot be one is told."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from shoal.core.errors import ConfigError
from shoal.core.order import Indices
from shoal.data import open_source, stream
from shoal.data.loader import Loader, Request
from shoal.data.sample_bytes import SampleError, decode, encode
from shoal.data.spool import Spool, SpoolError
from shoal.data.streams import StreamError

unit = pytest.mark.unit
Pair = namedtuple("Pair", "left right")
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def at(*numbers: int) -> Indices:
    return np.array(numbers, dtype=np.int64)


class Stream(IterableDataset[Any]):
    """Gives what `make` makes, anew each time."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


def tensors() -> st.SearchStrategy[Tensor]:
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    return st.builds(lambda shape, dtype: torch.randint(0, 2, shape).to(dtype), shapes, st.sampled_from(DTYPES))


def arrays() -> st.SearchStrategy[Any]:
    kinds = st.sampled_from(["<f8", "<i2", "|b1", "<U3", ">i4"])
    return st.builds(lambda rows, kind: np.ones((rows, 2), dtype=kind), st.integers(0, 3), kinds)


LEAVES = st.one_of(
    tensors(), arrays(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.none(), st.text(),
    st.binary(), st.builds(np.float32, st.integers(0, 9)), st.builds(np.float64, st.integers(0, 9)),
    st.builds(np.bool_, st.booleans()),
)  # fmt: skip
SAMPLES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 5)), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)


def assert_same(found: Any, given: Any) -> None:
    assert type(found) is type(given)
    if isinstance(given, Tensor):
        assert found.dtype == given.dtype
        assert found.shape == given.shape
        assert torch.equal(found, given)
    elif isinstance(given, np.ndarray):
        assert (found.dtype, found.shape, found.tolist()) == (given.dtype, given.shape, given.tolist())
    elif isinstance(given, dict):
        assert list(found) == list(given)
        assert_same(list(found.values()), list(given.values()))
    elif isinstance(given, tuple | list):
        assert len(found) == len(given)
        for one, other in zip(found, given, strict=True):
            assert_same(one, other)
    else:
        assert found == given or (found != found and given != given)


@unit
@given(SAMPLES)
def test_any_sample_comes_back_from_its_bytes(sample: Any) -> None:
    data = bytearray()
    form = encode(sample, data)
    assert_same(decode(form, data), sample)


@unit
@given(st.lists(SAMPLES, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_samples_can_be_read_in_any_order_and_have_a_digest(samples: list[Any], draw: random.Random) -> None:
    spools = [Spool(), Spool(), Spool()]
    for spool, kept in zip(spools, (samples, samples, samples[:-1]), strict=True):
        for sample in kept:
            spool.append(sample)
        spool.seal()
    numbers = draw.sample(range(len(samples)), len(samples))
    for number in (*numbers, *numbers):
        assert_same(spools[0].read(number), samples[number])
    assert spools[0].digest == spools[1].digest != spools[2].digest


@unit
def test_other_samples_or_another_order_is_another_digest() -> None:
    def digest(*samples: Any) -> str:
        spool = Spool()
        for sample in samples:
            spool.append(sample)
        return spool.digest

    alike = [(1, 2), (2, 1), (1, 2.0), (1,), (1, (2,)), (torch.tensor(1), 2), (torch.tensor([1]), 2)]
    assert len({digest(*samples) for samples in alike}) == len(alike)
    assert digest(torch.zeros(2, 3)) != digest(torch.zeros(3, 2)) != digest(torch.zeros(3, 2, dtype=torch.int32))


@unit
@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ((0, object()), r"builtins.object at sample\[1\]"),
        ({"x": [torch.eye(2).to_sparse()]}, r"sparse tensor at sample\['x'\]\[0\]"),
        (np.array([object()]), "array of Python objects"),
        ((2**64,), r"more than 64 bits at sample\[0\]"),
    ],
)
def test_what_cannot_become_bytes_is_named_with_its_place(sample: Any, says: str) -> None:
    with pytest.raises(SampleError, match=f"train data, sample 1: it holds.*{says}"):
        open_source(Stream(lambda: [0, sample]), "train")


@unit
def test_a_stream_of_unknown_length_becomes_a_data_set_with_random_access() -> None:
    source = open_source(Stream(lambda: ((torch.full((2,), n), n) for n in range(50))), "train")
    assert len(source) == 50
    for _ in range(2):
        x, y = source.fetch(at(49, 0, 7, 7), 3, 1)
        assert x.tolist() == [[49, 49], [0, 0], [7, 7], [7, 7]]
        assert y.tolist() == [49, 0, 7, 7]
        x.zero_()


@pytest.mark.ranks
def test_loader_processes_read_the_same_spool() -> None:
    source = open_source(Stream(lambda: range(40)), "train")
    loaded = list(Loader(source, 5, processes=2).stream(Request(0, start, start + 8) for start in range(0, 40, 8)))
    assert sorted(torch.cat([one.batch for one in loaded]).tolist()) == list(range(40))
    for one in loaded:
        assert one.batch.tolist() == one.indices.tolist()


@unit
def test_samples_of_varying_length_are_collated_by_the_stream_itself() -> None:
    class Ragged(Stream):
        def collate(self, samples: list[Tensor]) -> Any:
            return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

    lengths = Ragged(lambda: (torch.ones(n) for n in range(5)))
    assert open_source(lengths, "train").fetch(at(1, 3), 0, 0).tolist() == [[1, 0, 0], [1, 1, 1]]
    with pytest.raises(RuntimeError) as caught:
        open_source(Stream(lengths.make), "train").fetch(at(1, 3), 0, 0)
    assert "give the dataset a `collate` method" in caught.value.__notes__[0]


@unit
def test_a_stream_sees_one_torch_worker() -> None:
    assert open_source(Stream(lambda: [get_worker_info() is None]), "train").fetch(at(0), 0, 0).tolist() == [True]


@unit
def test_what_a_stream_draws_is_the_same_wherever_it_is_read() -> None:
    def noisy() -> Iterator[Any]:
        for _ in range(3):
            yield float(torch.rand(())), random.random(), float(np.random.random())

    first = open_source(Stream(noisy), "train")
    torch.manual_seed(99), random.seed(99), np.random.seed(99)
    before = torch.rand(()), random.random(), np.random.random()
    torch.manual_seed(99), random.seed(99), np.random.seed(99)
    assert open_source(Stream(noisy), "train").digest == first.digest
    assert (torch.rand(()), random.random(), np.random.random()) == before, "the generators were not given back"


@unit
def test_an_error_of_the_stream_passes_through_and_names_the_sample() -> None:
    def breaks() -> Iterator[int]:
        yield 0
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone") as caught:
        open_source(Stream(breaks), "test")
    assert caught.value.__notes__ == ["while reading sample 1 of the test data, which is a stream"]


@unit
def test_a_stream_without_end_is_given_up_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.data.streams.LIMIT_SAMPLES", 1000)
    endless = Stream(itertools.count)
    with pytest.raises(StreamError, match=r"(?s)1,001 samples.*not ended.*shoal.data.stream\(data, samples=N\)"):
        open_source(endless, "train")
    assert len(stream(endless, samples=2000)) == 2000  # who states a number means it
    assert len(stream(Stream(lambda: range(3)), samples=2000)) == 3


@unit
def test_a_stream_larger_than_half_the_free_disk_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1 << 20})())
    with pytest.raises(StreamError, match="point TMPDIR to a larger disk"):
        stream(Stream(lambda: itertools.repeat(torch.zeros(1000))), samples=10_000)


@unit
def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("wb", 0)  # noqa: SIM115 - the spool closes it
    monkeypatch.setattr("tempfile.TemporaryFile", lambda buffering: full)
    with pytest.raises(SpoolError, match=r"No space left on device.*Point TMPDIR"):
        open_source(Stream(lambda: itertools.repeat(torch.zeros(100_000), 20)), "train")


@unit
@pytest.mark.parametrize("data", [iter([1, 2]), (n for n in range(3)), 5])
def test_what_can_be_read_only_once_is_no_stream(data: Any) -> None:
    with pytest.raises(ConfigError, match="begin anew"):
        stream(data)
    with pytest.raises(ConfigError, match="at least 1"):
        stream([1], samples=0)


@unit
def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match="train data is empty"):
        open_source(Stream(list), "train")


@unit
def test_a_long_reading_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal.data.streams.PROGRESS_S", 0.0)
    open_source(Stream(lambda: range(3)), "train")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("reading the train data, a stream: 2 samples, 0 MB (")


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@unit
def test_a_stream_travels_and_is_read_where_it_arrives() -> None:
    source = open_source(Numbers(), "train")
    arrived = pickle.loads(pickle.dumps(source))
    assert arrived.fetch(at(2, 1), 0, 0).tolist() == [2, 1]
    assert arrived.digest == source.digest


@unit
def test_a_spool_has_no_name_and_goes_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held() -> list[str]:
        links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return [str(link) for link in links if link.is_relative_to(tmp_path)]

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = open_source(Stream(lambda: range(10)), "train")
    assert list(tmp_path.iterdir()) == []
    assert len(held()) == 1
    del source
    assert held() == []
