"""Folders of images: the class of an image is the name of the folder in which it lies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.data.formats.base import BadRecord, Format, FormatError, OnBad, Split, formats
from shoal.data.places import Entry, Place

CLASSES = b"classes"  # in the metadata of a schema: the names of the labels 0, 1, 2, … as JSON
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b"BM", b"GIF8")


@formats.add("images")
class Images(Format):
    """Columns ``image``, the bytes of the file, and ``label``. A file is one split."""

    name = "images"
    endings = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")

    def splits(self, entry: Entry, block_bytes: int) -> list[Split]:
        return [Split(entry.place, self.name, 0, 1, entry.nbytes)]

    def counted(self, entry: Entry, block_bytes: int) -> list[tuple[Split, int]]:
        return [(split, 1) for split in self.splits(entry, block_bytes)]

    def schema(self, entry: Entry) -> Any:
        """With the classes that lie beside that of this file."""
        folder, slash, _ = entry.place.url.rpartition("/")
        beside = Place(folder.rpartition("/")[0] or slash, entry.place.options).files()
        return self.common_schema([one for one in beside if one.place.name.lower().endswith(self.endings)])

    def common_schema(self, entries: Sequence[Entry]) -> Any:
        import pyarrow as pa

        classes = sorted({class_of(entry.place) for entry in entries})
        return pa.schema(
            [pa.field("image", pa.binary()), pa.field("label", pa.int64())], {CLASSES: json.dumps(classes).encode()}
        )

    def read(self, split: Split, schema: Any, on_bad: OnBad) -> Iterator[Any]:
        import pyarrow as pa

        values: dict[str, Any] = {}
        if "label" in schema.names:
            values["label"] = [self._label(split.place, schema)]
        if "image" in schema.names:
            image = split.place.read()
            if not image.startswith(_BEGINNINGS):
                reason = "the file is no image: it begins like none" if image else "the file is empty"
                on_bad(BadRecord(str(split.place), 0, reason))
                return
            values["image"] = [image]
        yield pa.RecordBatch.from_pydict(values, schema=schema)

    @staticmethod
    def _label(place: Place, schema: Any) -> int:
        classes: list[str] = json.loads((schema.metadata or {}).get(CLASSES, b"[]"))
        name = class_of(place)
        if name not in classes:
            raise FormatError(f"{place} is of the class {name!r}, which is none of {', '.join(classes)}")
        return classes.index(name)


def class_of(place: Place) -> str:
    return place.url.rpartition("/")[0].rpartition("/")[2]
