"""Sums in float64 are rounded once, in place, whatever the sizes, types and layouts."""

from __future__ import annotations

import pytest
import torch

from shoal.strategies.narrowing import Narrowing

pytestmark = pytest.mark.unit


def test_every_value_is_rounded_once_in_place() -> None:
    generator = torch.Generator().manual_seed(0)
    like = [
        torch.empty(3, 5),
        torch.empty(70_000),  # more than a piece
        torch.empty(0),
        torch.empty(8, 4, 3, 3).contiguous(memory_format=torch.channels_last),
        torch.empty(11, dtype=torch.float64),
        torch.empty(400, 500),
        torch.empty(7, dtype=torch.bfloat16),
        *[torch.empty(100) for _ in range(20)],
    ]
    whole = torch.randn(sum(one.numel() for one in like), dtype=torch.float64, generator=generator)
    flats = list(whole.split([one.numel() for one in like]))
    expected = [flat.clone() for flat in flats]
    narrowing = Narrowing(flats, like)
    for found, before, one in zip(narrowing.narrow(), expected, like, strict=True):
        assert found.dtype == one.dtype
        assert found.shape == one.shape
        assert found.stride() == one.stride()
        assert found.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        flat = found.permute(0, 2, 3, 1).reshape(-1) if one.dim() == 4 else found.reshape(-1)
        assert torch.equal(flat, before.to(one.dtype))
    for flat, before in zip(flats, expected, strict=True):  # the next step begins anew
        flat.copy_(before * 2)
    assert torch.equal(narrowing.narrow()[0].flatten(), (expected[0] * 2).float())
