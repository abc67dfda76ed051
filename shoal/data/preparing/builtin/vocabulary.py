"""`vocabulary`: words become numbers, the most frequent first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.preparing.builtin.base import BuiltinStep, builtin_jobs
from shoal.data.preparing.step import At, column, columns

KEPT = 4  # times the size of the vocabulary are counted on the way: enough for all but the rarest


@builtin_jobs.add("vocabulary")
class Vocabulary(BuiltinStep):
    """``vocabulary:columns=city:size=10000``: each value of a column becomes its number, from 1 for the most frequent
    (words of equal frequency in alphabetical order); 0 is all that is rarer, and null. With ``split=yes`` a column of
    text becomes lists of the numbers of its words, in small letters. The words are in the manifest, in order."""

    name = "vocabulary"
    options: Mapping[str, str] = MappingProxyType(
        {
            "columns": "the columns of words, separated by commas",
            "size": "how many words get a number (default 65535)",
            "split": "yes: a text is a list of words (default no)",
        }
    )
    measures = True

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._columns = self.required("columns")
        self._size = int(self.number("size", 65535))
        self._split = given.get("split", "no") == "yes"
        if self._size < 1:
            raise ConfigError(f"job vocabulary: size={self._size}: give at least 1")

    def _words(self, batch: Any, name: str) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        values = column(batch, name, "job vocabulary")
        if not self._split:
            return values.cast(pa.string())
        texts = pc.utf8_trim_whitespace(pc.utf8_lower(values.cast(pa.string())))
        return pc.utf8_split_whitespace(pc.if_else(pc.equal(texts, ""), None, texts))

    def measure(self, batch: Any) -> Any:
        import pyarrow.compute as pc

        columns(self._columns, batch.schema, "job vocabulary")
        found = {}
        for name in self._columns:
            words = self._words(batch, name)
            counted = pc.value_counts(pc.list_flatten(words) if self._split else words)
            pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
            found[name] = {word: count for word, count in pairs if word}
        return found

    def merge(self, measured: Iterable[Any]) -> Any:
        whole: dict[str, Counter[str]] = {name: Counter() for name in self._columns}
        for part in measured:
            for name, counts in part.items():
                whole[name].update(counts)
        return {name: dict(self._frequent(counts, KEPT * self._size)) for name, counts in whole.items()}

    def lesson(self, learned: Any) -> Any:
        return {name: [word for word, _ in self._frequent(counts, self._size)] for name, counts in learned.items()}

    @staticmethod
    def _frequent(counts: dict[str, int], size: int) -> list[tuple[str, int]]:
        return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:size]

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for name in self._columns:
            known = pa.array(
                [word for word, _ in self._frequent((learned or {}).get(name, {}), self._size)], pa.string()
            )
            words = self._words(batch, name)
            flat = pc.list_flatten(words) if self._split else words
            numbers = pc.add(pc.index_in(flat, known).fill_null(-1), 1).cast(pa.int32())
            if self._split:
                words = words.fill_null([]) if words.null_count else words
                lengths = pc.list_value_length(words).to_numpy(zero_copy_only=False)
                import numpy as np

                offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
                numbers = pa.ListArray.from_arrays(offsets, numbers)
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, pa.field(name, numbers.type), numbers)
        return (batch,)
