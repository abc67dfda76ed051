"""What every format of raw files promises, as tests. A format's test class inherits them and says how a file of it is
written::

class TestMine(FormatContract):
    def write(self, folder: Path, values: list[Value]) -> Path:
        ...
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.errors import UserError
from shoal.data.formats import BadRecord, find, format_named
from shoal.data.places import Place

Value = tuple[int, str]
_LETTERS = st.characters(codec="utf-8", exclude_characters='"', exclude_categories=("Cs", "Cc"))
_TEXTS = st.text(_LETTERS, max_size=30).map(lambda text: f"t{text}")
VALUES = st.lists(st.tuples(st.integers(-(2**40), 2**40), _TEXTS), min_size=1, max_size=60)
_INHERITED = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors)


class FormatContract:
    """Give `write`, which puts values into a new file. `columns` are the names under which it can be read again: of the
    numbers, and of the texts if it holds them, which it may `follow` with something. A file of `whole` format is one
    split; with `optional` columns, one that is nowhere is no error."""

    columns: ClassVar[tuple[str, ...]] = ("number", "text")
    follow: ClassVar[str] = ""
    whole: ClassVar[bool] = False
    optional: ClassVar[bool] = False

    def write(self, folder: Path, values: list[Value]) -> Path:
        raise NotImplementedError

    @settings(
        max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
    )
    @given(values=VALUES, block_bytes=st.integers(1, 4000))
    def test_every_record_is_in_exactly_one_split_for_any_block_size(
        self, tmp_path: Path, values: list[Value], block_bytes: int
    ) -> None:
        path = self.write(tmp_path, values)
        by_split = self._read(path, block_bytes)
        assert [row for rows in by_split for row in rows] == self._expected(values)
        entry, format_ = find(Place.of(path))[0]
        counted = format_.counted(entry, block_bytes)
        assert counted is None or [rows for _, rows in counted] == [len(rows) for rows in by_split]

    def test_a_large_file_is_cut_into_splits_of_about_the_size_asked_for(self, tmp_path: Path) -> None:
        entry, format_ = find(Place.of(self.write(tmp_path, [(number, f"text {number}") for number in range(5000)])))[0]
        splits = format_.splits(entry, 8000)
        # indexes and footers belong to no split
        assert 0.4 * entry.nbytes < sum(split.nbytes for split in splits) < 1.1 * entry.nbytes
        if self.whole:
            assert len(splits) == 1
        else:
            assert len(splits) > 3
            assert max(split.nbytes for split in splits) <= 20_000  # a tar is padded at its end

    def test_columns_can_be_left_out(self, tmp_path: Path) -> None:
        import pyarrow as pa

        values = [(1, "one"), (2, "two"), (3, "three")]
        entry, format_ = find(Place.of(self.write(tmp_path, values)))[0]
        only = pa.schema([format_.common_schema([entry]).field(self.columns[-1])])
        batches = [
            batch
            for split in format_.splits(entry, 1 << 20)
            for batch in format_named(split.format).read(split, only, _refuse)
        ]
        found = pa.Table.from_batches(batches).to_pydict()
        assert found == {self.columns[-1]: [row[-1] for row in self._expected(values)]}

    def test_a_column_that_is_nowhere_is_named(self, tmp_path: Path) -> None:
        import pyarrow as pa

        entry, format_ = find(Place.of(self.write(tmp_path, [(1, "one")])))[0]
        told: list[str] = []
        try:
            for split in format_.splits(entry, 1 << 20):
                schema = pa.schema([("nonesuch", pa.int64())])
                list(format_named(split.format).read(split, schema, lambda bad: told.append(bad.reason)))
        except UserError as error:
            told.append(str(error))
        assert told == [] if self.optional else "nonesuch" in told[0]

    def test_splits_can_be_sent_to_other_processes(self, tmp_path: Path) -> None:
        entry, format_ = find(Place.of(self.write(tmp_path, [(1, "one")])))[0]
        splits = format_.splits(entry, 1 << 20)
        assert pickle.loads(pickle.dumps(splits)) == splits  # noqa: S301 - our own

    def _expected(self, values: list[Value]) -> list[tuple[Any, ...]]:
        return [(number, text + self.follow)[: len(self.columns)] for number, text in values]

    def _read(self, path: Path, block_bytes: int) -> list[list[tuple[Any, ...]]]:
        """The records of each split, read in an order that is not theirs."""
        entry, format_ = find(Place.of(path))[0]
        schema = format_.common_schema([entry])
        splits = format_.splits(entry, block_bytes)
        found: dict[int, list[tuple[Any, ...]]] = {}
        for number, split in reversed(list(enumerate(splits))):
            found[number] = []
            for batch in format_named(split.format).read(split, schema, _refuse):
                assert batch.num_rows
                assert batch.schema.equals(schema, check_metadata=True)
                rows = batch.to_pydict()
                found[number] += list(zip(*(rows[name] for name in self.columns), strict=True))
        return [found[number] for number in range(len(splits))]


def _refuse(bad: BadRecord) -> NoReturn:
    pytest.fail(f"{bad} was called bad")
