"""Every codec that comes with Shoal keeps the contract of codecs; so does one that a user adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import pytest
import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec, as_bytes, as_dtype, put
from shoal.comm.codecs.names import CODECS, check_codec, codec_named
from shoal.comm.codecs.topk import largest
from shoal.core.errors import ConfigError
from shoal.testing.codec_contract import CodecContract, norm, sample

pytestmark = [pytest.mark.contract, pytest.mark.unit]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class OwnCodec(Codec):
    """As a user would write one: whole numbers of a step."""

    name = "steps"

    def encode(self, name: str, tensor: Tensor) -> Tensor:
        step = tensor.detach().float().abs().max().view(1) / 1000 if tensor.numel() else torch.zeros(1)
        numbers = (tensor.detach().reshape(-1).float() / step.clamp(min=1e-37)).round().to(torch.int16)
        return torch.cat([as_bytes(step), as_bytes(numbers)])

    def decode(self, name: str, payload: Tensor, out: Tensor, scale: float = 1.0, add: bool = False) -> None:
        step = as_dtype(payload[:4], torch.float32)
        put(as_dtype(payload[4:], torch.int16).to(out.dtype) * step.to(out.dtype), out, scale, add)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        return 4 + 2 * prod(shape)


class TestNone(CodecContract):
    error = 0.0

    def codec(self) -> Codec:
        return codec_named("none")


class TestBf16(CodecContract):
    error = 2**-8

    def codec(self) -> Codec:
        return codec_named("bf16")


class TestFp16(CodecContract):
    error = 2**-10

    def codec(self) -> Codec:
        return codec_named("fp16")


class TestInt8(CodecContract):
    error = 0.05

    def codec(self) -> Codec:
        return codec_named("int8")


class TestInt8Stochastic(CodecContract):
    error = 0.1

    def codec(self) -> Codec:
        return codec_named("int8:stochastic")


class TestTopK(CodecContract):
    def codec(self) -> Codec:
        return codec_named("topk")


class TestTopKOfMany(CodecContract):
    error = 0.2

    def codec(self) -> Codec:
        return codec_named("topk:0.5")


class TestPowerSGD(CodecContract):
    def codec(self) -> Codec:
        return codec_named("powersgd")


class TestPowerSGDOfRankOne(CodecContract):
    def codec(self) -> Codec:
        return codec_named("powersgd:1")


class TestOwnCodec(CodecContract):
    error = 0.02

    def codec(self) -> Codec:
        return OwnCodec()


# ---- what is particular


@pytest.mark.parametrize("kind", ["many sizes", "all equal", "mostly zero", "rising"])
def test_topk_finds_the_largest(kind: str) -> None:
    flat = sample((40_003,))
    if kind == "all equal":
        flat = torch.ones(40_003)
    elif kind == "mostly zero":
        flat[flat.abs() < 0.5] = 0.0
    elif kind == "rising":
        flat = torch.arange(40_003).float() - 20_000
    for count in (1, 100, 400, 20_000, 40_003):
        places = largest(flat, count)
        assert len(set(places.tolist())) == count
        assert torch.equal(flat[places].abs().sort().values, flat.abs().sort().values[-count:]), count


def test_powersgd_comes_near_the_best_of_its_rank_on_a_matrix_that_stays() -> None:
    codec, errors = codec_named("powersgd:2"), []
    left, right = (torch.linalg.qr(sample((size, 40), seed=size)).Q for size in (96, 80))
    values = 0.7 ** torch.arange(40)
    matrix = (left * values) @ right.t()
    for _ in range(8):
        out = torch.empty_like(matrix)
        codec.decode("w", codec.encode("w", matrix), out)
        codec.commit()
        errors.append(norm(out - matrix))
    best = norm(values[2:])
    assert best * 0.999 <= errors[-1] <= best * 1.01
    assert errors[0] > best * 1.05, "it was as good without the factors of the steps before"


def test_powersgd_leaves_vectors_and_small_matrices_exact() -> None:
    codec = codec_named("powersgd:4")
    for shape in ((5000,), (10, 12), (16, 1, 3, 3)):
        tensor = sample(shape, torch.float64)
        out = torch.empty_like(tensor)
        codec.decode("w", codec.encode("w", tensor), out)
        assert torch.equal(out, tensor)


def test_stochastic_rounding_is_right_on_average() -> None:
    codec, mean = codec_named("int8:stochastic"), torch.zeros(64)
    tensor = torch.linspace(-1, 1, 64)
    tensor[0] = 1.0
    for trial in range(400):
        out = torch.empty(64)
        codec.decode("w", codec.encode(str(trial), tensor), out)
        mean += out / 400
    nearest = torch.empty(64)
    plain = codec_named("int8")
    plain.decode("w", plain.encode("w", tensor), nearest)
    assert norm(mean - tensor) < 0.3 * norm(nearest - tensor)


# ---- names


@pytest.mark.parametrize(
    ("spec", "name"),
    [("none", "none"), ("topk", "topk:0.01"), ("topk:0.05", "topk:0.05"), ("powersgd", "powersgd:4"),
     ("powersgd:2", "powersgd:2"), ("int8", "int8")],
)  # fmt: skip
def test_codecs_are_made_by_name(spec: str, name: str) -> None:
    assert codec_named(spec).name == name
    check_codec(spec)
    assert codec_named(codec_named(spec).name).name == name


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("topc", "did you mean 'topk'"),
        ("", "is not a codec"),
        ("topk:0", "the fraction of numbers that are sent, from 1e-06 to 1"),
        ("topk:2", "from 1e-06 to 1"),
        ("topk:nan", "wrong parameter"),
        ("topk:many", "comm.codec=topk:many"),
        ("powersgd:0", "the rank of the factors"),
        ("powersgd:2.5", "a whole number"),
        ("bf16:3", "bf16 takes no parameter"),
        ("none:", "none takes no parameter"),
        ("int8:fair", "int8:stochastic"),
    ],
)
def test_a_wrong_name_or_parameter_is_explained(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match="codec") as caught:
        check_codec(spec)
    assert words in str(caught.value)


def test_auto_is_known_but_is_no_codec() -> None:
    check_codec("auto")
    with pytest.raises(ConfigError, match="codec='auto' is not a codec"):
        codec_named("auto")


def test_a_user_adds_a_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CODECS, "_entries", dict(CODECS._entries))
    CODECS.add("steps")(lambda parameter: OwnCodec())
    assert isinstance(codec_named("steps"), OwnCodec)
