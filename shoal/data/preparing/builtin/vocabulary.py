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
_NO_WORD = ""  # null counts as this


@builtin_jobs.add("vocabulary")
class Vocabulary(BuiltinStep):
    """``vocabulary:columns=city:size=10000``: each value of a column becomes its number, from 0 for the most frequent
    (words of equal frequency in alphabetical order), so that labels of two classes are 0 and 1. Where a value can be
    unknown, 0 stands for these and words are numbered from 1: a column with empty values or with more words than
    ``size``, and texts; ``unknown=yes`` or ``no`` decides it otherwise. With ``split=yes`` a column of text becomes
    lists of the numbers of its words, in small letters. The manifest has the words by number, null for unknown."""

    name = "vocabulary"
    options: Mapping[str, str] = MappingProxyType(
        {
            "columns": "the columns of words, separated by commas",
            "size": "how many words get a number (default 65535)",
            "split": "yes: a text is a list of words (default no)",
            "unknown": "whether 0 is kept for unknown values: yes, no or auto (default: where a value can be unknown)",
        }
    )
    measures = True

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._columns = self.required("columns")
        self._size = int(self.number("size", 65535))
        self._split = given.get("split", "no") == "yes"
        self._unknown = given.get("unknown", "auto")
        if self._unknown not in ("yes", "no", "auto"):
            raise ConfigError(f"job vocabulary: unknown={self._unknown}: give yes, no or auto")
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
            counts: Counter[str] = Counter()
            for word, count in pairs:
                counts[word or _NO_WORD] += count
            found[name] = dict(counts)
        return found

    def merge(self, measured: Iterable[Any]) -> Any:
        whole: dict[str, Counter[str]] = {name: Counter() for name in self._columns}
        for part in measured:
            for name, counts in part.items():
                whole[name].update(counts)
        kept: dict[str, dict[str, int]] = {}
        for name, counts in whole.items():
            kept[name] = {word: counts[word] for word in _frequent(counts, KEPT * self._size)}
            if counts[_NO_WORD]:
                kept[name][_NO_WORD] = counts[_NO_WORD]
        return kept

    def lesson(self, learned: Any) -> Any:
        return {name: self._by_number(name, counts) for name, counts in learned.items()}

    def _by_number(self, name: str, counts: Mapping[str, int]) -> list[str | None]:
        """The words of a column, each at its number; None where that stands for what is unknown. Raises `ConfigError`
        where a value is unknown and no number was to be kept for it."""
        words = _frequent(counts, self._size)
        missing, rarer = counts.get(_NO_WORD, 0), len(counts) - (_NO_WORD in counts) > self._size
        missing = 0 if self._split else missing  # no text is an empty list
        if self._unknown == "no" and (missing or rarer):
            why = f"{missing:,} empty values" if missing else f"more than {self._size:,} different words"
            raise ConfigError(
                f"job vocabulary: unknown=no, but column {name!r} has {why}: leave unknown out, or fill them first "
                f"with --job fill:columns={name}:value=most-frequent, or give a larger size"
            )
        reserved = self._unknown == "yes" or (self._unknown == "auto" and (self._split or bool(missing) or rarer))
        return [None, *words] if reserved else [*words]

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for name in self._columns:
            by_number = self._by_number(name, (learned or {}).get(name, {}))
            known = pa.array([_NO_WORD if word is None else word for word in by_number], pa.string())
            words = self._words(batch, name)
            flat = pc.list_flatten(words) if self._split else words
            numbers = pc.index_in(flat, known).fill_null(0).cast(pa.int32())
            if self._split:
                words = words.fill_null([]) if words.null_count else words
                lengths = pc.list_value_length(words).to_numpy(zero_copy_only=False)
                import numpy as np

                offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
                numbers = pa.ListArray.from_arrays(offsets, numbers)
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, pa.field(name, numbers.type), numbers)
        return (batch,)


def _frequent(counts: Mapping[str, int], size: int) -> list[str]:
    """The most frequent words first."""
    words = (pair for pair in counts.items() if pair[0] != _NO_WORD)
    return [word for word, _ in sorted(words, key=lambda pair: (-pair[1], pair[0]))[:size]]
