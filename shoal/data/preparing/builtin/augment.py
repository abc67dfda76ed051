"""`augment`: more rows than there were, written to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from shoal.core.errors import ConfigError
from shoal.core.seeds import mix
from shoal.data.preparing.builtin.base import BuiltinStep, builtin_jobs
from shoal.data.preparing.builtin.moments import is_number
from shoal.data.preparing.step import At, column

_AUGMENT = 8231


@builtin_jobs.add("augment")
class Augment(BuiltinStep):
    """``augment:copies=3:noise=x,y:std=0.1`` adds normal noise to columns of numbers, ``augment:copies=2:flip=image``
    mirrors encoded images (and crops them by up to ``crop`` pixels a side). The row itself comes first, then its
    copies. What is drawn depends on ``seed``, on the row and on the copy, and on nothing else."""

    name = "augment"
    options: Mapping[str, str] = MappingProxyType(
        {
            "copies": "rows made of each, besides itself (default 1)",
            "noise": "columns of numbers that get normal noise",
            "std": "the standard deviation of the noise (default 0.1)",
            "flip": "columns of encoded images that are mirrored at random",
            "crop": "pixels by which images are cut at random on each side, then resized back (default 0)",
            "seed": "of all that is drawn (default 0)",
        }
    )

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self._copies, self._seed = int(self.number("copies", 1)), int(self.number("seed", 0))
        self._std, self._crop = self.number("std", 0.1), int(self.number("crop", 0))
        if not self.texts("noise") and not self.texts("flip"):
            raise ConfigError("job augment: say what to change: noise=COLUMN,… or flip=IMAGE_COLUMN")

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        yield batch
        for copy in range(1, self._copies + 1):
            changed = batch
            for number, name in enumerate(self.texts("noise")):
                changed = self._replaced(changed, name, at, (copy, number), self._noisy)
            for number, name in enumerate(self.texts("flip")):
                changed = self._replaced(changed, name, at, (copy, 1000 + number), self._flipped)
            yield changed

    def _replaced(
        self, batch: Any, name: str, at: At, draw: tuple[int, int], change: Callable[[Any, list[int]], Any]
    ) -> Any:
        values = column(batch, name, "job augment")
        seeds = [mix(_AUGMENT, self._seed, at.task, at.row + row, *draw) for row in range(len(values))]
        place = batch.schema.get_field_index(name)
        return batch.set_column(place, batch.schema.field(name), change(values, seeds))

    def _noisy(self, values: Any, seeds: list[int]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not is_number(values.type):
            raise ConfigError(f"job augment: noise needs numbers, not {values.type}")
        # two uniform numbers from the halves of each seed (Box-Muller): one draw a row, whatever the batch
        bits = np.array(seeds, np.uint64)
        first = ((bits >> np.uint64(32)).astype(np.float64) + 1) / 2**32
        second = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2**32
        noise = self._std * np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
        noisy = pc.add(values.cast(pa.float64()), pa.array(noise))
        return (noisy if pa.types.is_floating(values.type) else pc.round(noisy)).cast(values.type)

    def _flipped(self, values: Any, seeds: list[int]) -> Any:
        import pyarrow as pa

        made = [
            None if data is None else self._image(data, seed)
            for data, seed in zip(values.to_pylist(), seeds, strict=True)
        ]
        return pa.array(made, values.type)

    def _image(self, data: bytes, seed: int) -> bytes:
        import io

        try:
            from PIL import Image, ImageOps
        except ImportError:
            raise ConfigError("job augment of images needs Pillow: pip install 'shoal[images]'") from None
        with Image.open(io.BytesIO(data)) as opened:
            kind, image = opened.format or "PNG", opened.copy()
        if seed & 1:
            image = ImageOps.mirror(image)
        if self._crop:
            width, height = image.size
            left, top, right, bottom = ((seed >> shift) % (self._crop + 1) for shift in (8, 16, 24, 32))
            if left + right < width and top + bottom < height:
                image = image.crop((left, top, width - right, height - bottom)).resize((width, height))
        made = io.BytesIO()
        image.save(made, kind, **({"quality": 95} if kind == "JPEG" else {}))
        return made.getvalue()
