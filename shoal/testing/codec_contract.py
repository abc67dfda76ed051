"""What every codec promises, as tests. A codec's test class inherits them and says how the codec is made::

class TestMine(CodecContract):
    error = 0.01

    def codec(self) -> Codec:
        return Mine()
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec
from shoal.comm.codecs.feedback import ErrorFeedback

SHAPES = ((), (0,), (1,), (7,), (1023,), (1024,), (1025,), (3, 5), (0, 5), (64, 48), (16, 3, 3, 3), (40_003,))
DTYPES = (torch.float32, torch.float64)
ROUNDING = 1e-5  # relative, of sums in float32


def sample(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Numbers of many sizes, as gradients are."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (numbers * torch.rand(shape, generator=generator, dtype=torch.float64) ** 3).to(dtype)


def norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


class CodecContract:
    """Give `codec`, which makes a new one, and `error`: the largest part of a tensor, by its norm, that one round trip
    may leave out."""

    error: ClassVar[float] = 1.0

    def codec(self) -> Codec:
        raise NotImplementedError

    def round_trip(self, tensor: Tensor, codec: Codec | None = None) -> Tensor:
        codec = codec or self.codec()
        out = torch.full_like(tensor, 7.0)
        codec.decode("w", codec.encode("w", tensor), out)
        return out

    def test_what_comes_back_is_near_what_was_given(self) -> None:
        for shape, dtype in product(SHAPES, DTYPES):
            codec, tensor = self.codec(), sample(shape, dtype)
            before = tensor.clone()
            payload = codec.encode("w", tensor)
            assert payload.dtype == torch.uint8
            assert payload.dim() == 1
            assert torch.equal(tensor, before), "encoding changed what it was given"
            tensor.zero_()  # a payload that shared its memory would be zero now
            out = torch.full_like(tensor, 7.0)
            codec.decode("w", payload, out)
            assert norm(out - before) <= self.error * norm(before) * (1 + ROUNDING), (shape, dtype)
            if codec.exact:
                assert torch.equal(out, before), (shape, dtype)

    def test_the_length_of_a_payload_is_known_beforehand(self) -> None:
        for shape, dtype in product(SHAPES, DTYPES):
            codec, lengths = self.codec(), set()
            for seed in range(3):
                lengths.add(codec.encode("w", sample(shape, dtype, seed)).numel())
                codec.commit()
            lengths.add(codec.encode("other", torch.zeros(shape, dtype=dtype)).numel())
            assert lengths == {codec.payload_bytes(shape, dtype)}, (shape, dtype)
            size = sample(shape, dtype).nbytes
            assert codec.ratio(shape, dtype) == (codec.payload_bytes(shape, dtype) / size if size else 1.0)

    def test_decoding_scales_and_adds(self) -> None:
        for shape, dtype in product(SHAPES, DTYPES):
            codec, tensor, start = self.codec(), sample(shape), sample(shape, dtype, seed=1)
            payload = codec.encode("w", tensor)
            plain = self.round_trip(tensor).to(dtype)
            out = start.clone()
            codec.decode("w", payload, out, scale=-0.37)
            assert norm(out + 0.37 * plain) <= ROUNDING * norm(plain), (shape, dtype)
            out = start.clone()
            codec.decode("w", payload, out, scale=2.5, add=True)
            assert norm(out - start - 2.5 * plain) <= ROUNDING * norm(start.abs() + plain.abs()), (shape, dtype)

    def test_sums_are_those_of_single_payloads(self) -> None:
        for shape in SHAPES:
            tensors = [sample(shape, seed=seed) for seed in range(3)]
            payloads = [self.codec().encode("w", tensor) for tensor in tensors]
            expected = sum((self.round_trip(tensor) for tensor in tensors), torch.zeros(shape))
            out = torch.full(shape, torch.nan)
            self.codec().decode_sum("w", payloads, out, 0.25)
            assert norm(out - 0.25 * expected) <= ROUNDING * sum(norm(tensor) for tensor in tensors), shape

    def test_the_same_calls_give_the_same_bits(self) -> None:
        first, second = self.codec(), self.codec()
        for seed in range(3):
            for name, shape in (("a", (64, 48)), ("b", (1500,))):
                payloads = [codec.encode(name, sample(shape, seed=seed)) for codec in (first, second)]
                assert torch.equal(*payloads)
                outs = [torch.empty(shape), torch.empty(shape)]
                for codec, payload, out in zip((first, second), payloads, outs, strict=True):
                    codec.decode(name, payload, out, 0.3)
                assert torch.equal(*outs)
            first.commit()
            second.commit()

    def test_payloads_may_lie_anywhere(self) -> None:
        for shape, shift in product([(9,), (64, 48)], (1, 2, 3, 4)):
            codec, tensor = self.codec(), sample(shape)
            payload = codec.encode("w", tensor)
            moved = torch.cat([torch.full((shift,), 255, dtype=torch.uint8), payload])[shift:]
            out = torch.empty(shape)
            codec.decode("w", moved, out)
            assert torch.equal(out, self.round_trip(tensor)), f"wrong at an offset of {shift} bytes"

    def test_zeros_stay_zeros(self) -> None:
        for shape in ((9,), (64, 48), (3000,)):
            codec = self.codec()
            for _ in range(2):
                assert not self.round_trip(torch.zeros(shape), codec).any()
                codec.commit()
            assert self.round_trip(sample(shape), codec).any(), "after zeros nothing comes through any more"

    def test_small_and_large_numbers_stay_finite(self) -> None:
        for shape, size in product([(9,), (64, 48)], (1e-42, 1e-30, 1e6, 1e15)):
            tensor = sample(shape) * size
            out = self.round_trip(tensor)
            assert bool(out.isfinite().all()), (shape, size)
            assert norm(out - tensor) <= norm(tensor) * (1 + ROUNDING), (shape, size)

    def test_what_is_not_a_number_is_not_hidden(self) -> None:
        for shape, bad in product([(1,), (9,), (64, 48), (3000,), (40_003,)], (torch.nan, torch.inf, -torch.inf)):
            codec, tensor = self.codec(), sample(shape)
            tensor.view(-1)[tensor.numel() // 2] = bad
            assert not bool(self.round_trip(tensor, codec).isfinite().all()), (shape, bad)
            codec.discard()
            assert bool(self.round_trip(sample(shape), codec).isfinite().all()), "a discarded tensor has left something"

    def test_what_is_discarded_leaves_no_trace(self) -> None:
        codec, shape = self.codec(), (64, 48)
        codec.encode("w", sample(shape, seed=0))
        codec.commit()
        once = codec.encode("w", sample(shape, seed=1))
        codec.discard()
        assert torch.equal(codec.encode("w", sample(shape, seed=1)), once)

    def test_with_error_feedback_nothing_is_lost(self) -> None:
        for shape in ((500,), (64, 48)):
            feedback = ErrorFeedback(self.codec())
            given, decoded, out = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape), torch.empty(shape)
            for seed in range(20):
                tensor = sample(shape, seed=seed % 5)
                feedback.codec.decode("w", feedback.encode("w", tensor), out)
                feedback.commit()
                given += tensor
                decoded += out
            left = feedback.state()["w"]
            assert norm(given - decoded - left) <= ROUNDING * 20 * norm(sample(shape)), shape
