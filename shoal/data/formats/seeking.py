"""Files in which a reader seeks, wherever they lie."""

from __future__ import annotations

import io
from typing import Any

from shoal.data.places import Place


def open_to_seek(place: Place) -> Any:
    """A file object for reading at any position. One on a web server that knows no ranges is fetched whole."""
    if place.protocol not in ("http", "https"):
        return place.open()
    try:
        first: bytes = place.fs.cat_file(place.path, start=0, end=1)
    except Exception as error:
        place.refuse(error)
    return place.open() if len(first) <= 1 else io.BytesIO(first)
