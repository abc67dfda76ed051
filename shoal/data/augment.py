"""Transforms of images for `shoal.data.transform(per_sample=...)`: uint8 of shape [channels, height, width].

They work on all images of a batch at once, and draw for each image what its sample says. `of` says which part of a
sample the image is: a key of a dict, or a place in a tuple (by default the first).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.core.errors import ConfigError
from shoal.data.draws import Draws
from shoal.data.transforms import Rowwise


@dataclass(frozen=True, kw_only=True)
class ImageTransform(Rowwise):
    """Changes the images of a batch and leaves the other parts of its samples alone."""

    of: str | int | None = None

    @abstractmethod
    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """Images of shape [samples, channels, height, width]; they may be changed in place."""

    def __call__(self, batch: Any, draws: Draws) -> Any:
        if isinstance(batch, Tensor):
            return self.apply(self._checked(batch), draws)
        if isinstance(batch, dict) and self.of in batch:
            return {**batch, self.of: self.apply(self._checked(batch[self.of]), draws)}
        place = 0 if self.of is None else self.of
        if isinstance(batch, tuple | list) and isinstance(place, int) and place < len(batch):
            parts = list(batch)
            parts[place] = self.apply(self._checked(parts[place]), draws)
            return parts if isinstance(batch, list) else tuple(parts)
        known = ", ".join(map(repr, batch)) if isinstance(batch, dict) else f"a {type(batch).__name__}"
        raise ConfigError(f"{type(self).__name__}(of={self.of!r}): name the image of a sample, which is {known}")

    def _checked(self, images: Any) -> Tensor:
        if not isinstance(images, Tensor) or images.dim() != 4:
            shape = tuple(images.shape[1:]) if isinstance(images, Tensor) else f"in a {type(images).__name__}"
            raise ConfigError(
                f"{type(self).__name__}: the images are {shape}, not tensors [channels, height, width] of one size"
            )
        return images


@dataclass(frozen=True)
class RandomCrop(ImageTransform):
    """Pads with `padding` black pixels on each side, and cuts out a part of the old size at random."""

    padding: int

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        count, room = len(images), 2 * self.padding
        top, left = draws.integers(0, room + 1, 2).unbind(1)
        padded = F.pad(images, (self.padding,) * 4).contiguous()
        strides = padded.stride()
        begins = torch.arange(count) * strides[0] + top * strides[2] + left
        # a view of all parts of that size, by where in memory they begin; four times as quick as indices by dimension
        last = (count - 1) * strides[0] + room * strides[2] + room
        return padded.as_strided((last + 1, *images.shape[1:]), (1, *strides[1:])).index_select(0, begins)


@dataclass(frozen=True)
class RandomFlip(ImageTransform):
    """Mirrors left and right with this probability."""

    probability: float = 0.5

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        both = torch.cat([images, images.flip(3)])  # and one of them: twice as quick as torch.where on bytes
        return both.index_select(0, torch.arange(len(images)) + len(images) * draws.chance(self.probability))


@dataclass(frozen=True)
class ToFloat(ImageTransform):
    """Bytes become float32 from 0 to 1."""

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        return images.float().mul_(1 / 255)


@dataclass(frozen=True)
class Normalise(ImageTransform):
    """Float32, less `mean`, over `deviation`: one number for each channel, for bytes taken as 0 to 1."""

    mean: Sequence[float]
    deviation: Sequence[float]

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        channels = images.shape[1]
        if not len(self.mean) == len(self.deviation) == channels:
            raise ConfigError(
                f"Normalise: {len(self.mean)} means and {len(self.deviation)} deviations for {channels} channels: give "
                "one for each"
            )
        unit = 1 / 255 if images.dtype == torch.uint8 else 1.0
        deviation = torch.tensor(self.deviation).reshape(-1, 1, 1)
        offset = torch.tensor(self.mean).reshape(-1, 1, 1) / deviation
        return images.to(torch.float32, copy=True).mul_(unit / deviation).sub_(offset)
