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
    """Decode images, all of the size of one of `into`. Raises `ValueError`, whose argument names the number of the
    image that is at fault."""
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
            sizes = "x".join(map(str, pixels.shape[:2])), "x".join(map(str, into.shape[1:3]))
            raise ImageError(at, f"it is {sizes[0]} pixels and others are {sizes[1]}: make them of one size first")
        into[at] = pixels


class ImageError(ValueError):
    """An image cannot be used: which of those given, and why."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(at, why)
        self.at, self.why = at, why
