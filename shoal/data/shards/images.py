"""Images to tensors: JPEG by simplejpeg, what it cannot read by Pillow, with the same bits."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ConfigError

Pixels = npt.NDArray[np.uint8]
_JPEG = b"\xff\xd8\xff"


def require_decoders() -> None:
    """Raise `ConfigError` where images cannot be decoded here."""
    missing = [name for name in ("simplejpeg", "PIL") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"decoding images needs {' and '.join(missing)}: pip install 'shoal[images]'")


class Resize:
    """For `decode` of `shoal.data.open`: images of any size become `height` x `width` pixels, uint8, 3 x height x
    width, the same bits whoever reads them."""

    def __init__(self, height: int, width: int) -> None:
        if height < 1 or width < 1:
            raise ConfigError(f"Resize({height}, {width}): height and width are pixels, at least 1")
        self.height, self.width = height, width

    def __call__(self, data: Any) -> Pixels:
        """Raises `ValueError` for what is no image."""
        require_decoders()
        return np.asarray(resized(data, self.height, self.width), dtype=np.uint8).transpose(2, 0, 1).copy()


def resized(data: Any, height: int, width: int) -> Any:
    """A `PIL.Image` of these bytes, so many pixels high and wide. Raises `ValueError`."""
    from PIL import Image

    return Image.fromarray(decode_image(data)).resize((width, height), Image.Resampling.BILINEAR)


def decode_image(data: Any) -> Pixels:
    """The colours of one image, rows x columns x 3. Raises `ValueError`."""
    if bytes(data[:3]) == _JPEG:
        import simplejpeg

        try:
            found: Pixels = simplejpeg.decode_jpeg(data)
            return found
        except ValueError:  # a kind of JPEG that it does not know, or damaged: the other one decides
            pass
    return _by_pillow(data)


def _by_pillow(data: Any) -> Pixels:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(str(error)) from None


def decode_images(samples: Sequence[Any], into: Pixels) -> None:
    """Decode images, all of the size of one of `into`. Raises `ImageError`."""
    from simplejpeg import decode_jpeg

    size = into.shape[1] * into.shape[2] * into.shape[3]
    flat = into.reshape(len(into), size)
    for at, data in enumerate(samples):
        try:
            shape = decode_jpeg(data, buffer=flat[at]).shape
            if shape == into.shape[1:]:
                continue
        except ValueError:  # no JPEG, or one that does not fit
            pass
        try:
            pixels = decode_image(data)
        except ValueError as error:
            raise ImageError(at, str(error)) from None
        if pixels.shape != into.shape[1:]:
            raise ImageError(at, f"{pixels.shape[0]}x{pixels.shape[1]}", other_size=True)
        into[at] = pixels


class ImageError(ValueError):
    """An image cannot be used: which of those given, and why. With `other_size`, `why` is its size."""

    def __init__(self, at: int, why: str, *, other_size: bool = False) -> None:
        super().__init__(at, why)
        self.at, self.why, self.other_size = at, why, other_size

    def moved(self, by: int) -> ImageError:
        """The same, where the images were given from number `by` on."""
        return ImageError(self.at + by, self.why, other_size=self.other_size)
