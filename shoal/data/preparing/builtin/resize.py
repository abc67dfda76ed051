"""`resize`: images of all sizes become images of one."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.preparing.builtin.base import BuiltinStep, builtin_jobs
from shoal.data.preparing.step import At, column

_QUALITY = 95  # of JPEG


@builtin_jobs.add("resize")
class ResizeImages(BuiltinStep):
    """``resize:size=64x64:columns=image``: encoded images become so many pixels high and wide, and stay JPEG or
    PNG. What is no image is a bad record."""

    name = "resize"
    options: Mapping[str, str] = MappingProxyType(
        {"size": "height x width in pixels, such as 64x64", "columns": "of encoded images (default image)"}
    )

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        text = self.required("size")[0]
        sides = text.lower().split("x")
        if len(sides) != 2 or not all(side.isdigit() and int(side) > 0 for side in sides):
            raise ConfigError(f"job resize: size={text}: give height x width in pixels, such as 64x64")
        self._size = int(sides[0]), int(sides[1])
        self._columns = self.texts("columns") or ("image",)

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        import pyarrow as pa

        from shoal.data.shards.images import require_decoders  # late: it brings PyTorch along

        require_decoders()
        for name in self._columns:
            values = column(batch, name, "job resize")
            made = [None if data is None else self._image(data) for data in values.to_pylist()]
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(name), pa.array(made, values.type))
        return (batch,)

    def _image(self, data: bytes) -> bytes:
        from shoal.data.shards.images import resized

        made = io.BytesIO()
        kind = "JPEG" if data.startswith(b"\xff\xd8\xff") else "PNG"
        resized(data, *self._size).save(made, kind, **({"quality": _QUALITY} if kind == "JPEG" else {}))
        return made.getvalue()
