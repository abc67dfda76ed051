"""Rows of columns to one batch: gathered, and decoded where they are images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import ConfigError
from shoal.core.order import Indices
from shoal.data.shards.columns import Column, Decode, Packed, Values, model_dtype
from shoal.data.shards.images import ImageError, Resize, decode_image, decode_images

_WORTH_A_THREAD = 16 << 10  # bytes of images: for fewer it is not worth waking one

Part = tuple[Sequence[Values], Indices, Indices]  # columns, the rows of them that are wanted, and where these go


class Collator:
    """Makes tensors of rows. Used from one thread. `where` names a sample in words; images are decoded by `pool`, of so
    many `threads`."""

    def __init__(
        self, columns: Sequence[Column], where: Callable[[int], str], pool: ThreadPoolExecutor | None = None,
        threads: int = 1,
    ) -> None:  # fmt: skip
        self._columns, self._where, self._pool, self._threads = columns, where, pool, threads

    @property
    def decodes(self) -> bool:
        return any(column.decode is not None for column in self._columns)

    def __call__(self, parts: Sequence[Part], indices: Indices) -> list[Tensor]:
        """One tensor for each column; `indices` are the numbers of the samples. None where there are no samples."""
        return [self._column(at, parts, indices) for at in range(len(self._columns))] if len(indices) else []

    def _column(self, at: int, parts: Sequence[Part], indices: Indices) -> Tensor:
        column = self._columns[at]
        if column.decode is not None:
            return self._decoded(column, _samples(parts, at, len(indices)), indices)
        first = parts[0][0][at]
        assert isinstance(first, np.ndarray)
        answer = np.empty((len(indices), *first.shape[1:]), model_dtype(first, column))
        for part, places, slots in parts:
            values = part[at]
            assert isinstance(values, np.ndarray)
            if values.shape[1:] != first.shape[1:]:
                raise ConfigError(
                    f"column {column.words}: samples of shape {first.shape[1:]} and {values.shape[1:]} cannot be put "
                    "into one batch: make them equal with `shoal prepare`"
                )
            answer[slots] = values[places]
        return torch.from_numpy(answer)

    def _decoded(self, column: Column, samples: list[Any], indices: Indices) -> Tensor:
        assert column.decode is not None
        if column.decode is not decode_image:
            return self._decoded_one_by_one(column, column.decode, samples, indices)
        pixels: Any = None
        try:
            pixels = np.empty((len(samples), *decode_image(samples[0]).shape), np.uint8)
            self._decode_all(samples, pixels)
        except ImageError as error:
            if error.other_size:
                raise self._other_size(column, indices, error, pixels.shape[1:3]) from None
            raise self._bad_image(column, int(indices[error.at]), error.why) from None
        except ValueError as error:
            raise self._bad_image(column, int(indices[0]), str(error)) from None
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))

    def _decoded_one_by_one(self, column: Column, decode: Decode, samples: list[Any], indices: Indices) -> Tensor:
        made: list[Tensor] = []
        for one, number in zip(samples, indices.tolist(), strict=True):
            try:
                made.append(torch.as_tensor(decode(one)))
            except Exception as error:
                if isinstance(decode, Resize) and isinstance(error, ValueError):
                    raise self._bad_image(column, number, str(error)) from None
                error.add_note(f"while decoding column {column.words} of {self._where(number)}")
                raise
            if made[-1].shape != made[0].shape:
                raise ConfigError(
                    f"column {column.words}: {self._where(number)} becomes a tensor of shape {list(made[-1].shape)}, "
                    f"{self._where(int(indices[0]))} one of {list(made[0].shape)}: decode= must give all the same shape"
                )
        return torch.stack(made)

    def _decode_all(self, samples: list[Any], into: Any) -> None:
        threads = min(self._threads, len(samples), sum(map(len, samples)) // _WORTH_A_THREAD)
        if self._pool is None or threads < 2:
            decode_images(samples, into)
            return
        borders = [len(samples) * at // threads for at in range(threads + 1)]

        def decode(low: int, high: int) -> None:
            try:
                decode_images(samples[low:high], into[low:high])
            except ImageError as error:
                raise error.moved(low) from None

        for one in [self._pool.submit(decode, a, b) for a, b in itertools.pairwise(borders)]:
            one.result()

    def _other_size(self, column: Column, indices: Indices, error: ImageError, size: tuple[int, int]) -> ConfigError:
        height, width = size
        return ConfigError(
            f"column {column.words}: {self._where(int(indices[0]))} is {height}x{width} pixels, "
            f"{self._where(int(indices[error.at]))} is {error.why}, and a batch has one size. Resize them as they are "
            f"read, shoal.data.open(…, decode={{{column.words!r}: shoal.data.Resize({height}, {width})}}), or once, "
            f"`shoal prepare … --job resize:columns={column.words}:size={height}x{width}`"
        )

    def _bad_image(self, column: Column, sample: int, why: str) -> ConfigError:
        return ConfigError(f"column {column.words} of {self._where(sample)} is no image that can be used: {why}")


def _samples(parts: Sequence[Part], at: int, count: int) -> list[Any]:
    """The bytes of each sample."""
    found: list[Any] = [None] * count
    for part, places, slots in parts:
        packed = part[at]
        assert isinstance(packed, Packed)
        data, starts, stops = packed.data, packed.starts[places].tolist(), packed.stops[places].tolist()
        for slot, start, stop in zip(slots.tolist(), starts, stops, strict=True):
            found[slot] = data[start:stop]
    return found
