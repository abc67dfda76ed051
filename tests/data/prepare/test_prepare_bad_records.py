"""Records that cannot be used: a report with file, offset and reason, and the job stops or goes on as asked."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from prepared_rows import SMALL, rows

from shoal.core.errors import UserError
from shoal.data import prepare
from shoal.data.preparing.engine import InProcess
from shoal.data.preparing.prepare import Prepared

pytestmark = pytest.mark.unit

COUNT = 2600
BROKEN = {1234: "1234,not a number", 2001: "2001", 2002: "2002,1,2,3"}
POISON = 777


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A CSV with three lines that cannot be read, and one whose value is poison to the job."""
    lines = [BROKEN.get(row, f"{row},{-1 if row == POISON else row % 50}") for row in range(COUNT)]
    (tmp_path / "raw.csv").write_text("id,value\n" + "\n".join(lines) + "\n")
    return tmp_path / "raw.csv"


def offset_of(raw: Path, row: int) -> int:
    return raw.read_bytes().index(f"\n{row}".encode() + (b"," if row != 2001 else b"\n")) + 1


def square_root(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch["value"].to_pylist()
    if any(value < 0 for value in values):
        raise ValueError("a value is negative")
    return batch


def run(raw: Path, **settings: object) -> Prepared:
    return prepare(raw, raw.parent / "set", shards=2, engine=InProcess(), sizes=SMALL, **settings)  # type: ignore[arg-type]


def test_a_line_that_cannot_be_read_stops_the_job_with_file_offset_and_reason(raw: Path) -> None:
    with pytest.raises(UserError) as caught:
        run(raw)
    assert f"{raw} at offset {offset_of(raw, 1234)}: column 'value' should be int64" in str(caught.value)
    assert "it reads: 1234,not a number" in str(caught.value)
    assert "--bad-records reject" in str(caught.value)
    assert not (raw.parent / "set" / "_manifest.json").exists()


def test_a_row_that_map_cannot_take_is_found_and_named(raw: Path) -> None:
    raw.write_text("\n".join(line for line in raw.read_text().split("\n") if line not in BROKEN.values()))
    with pytest.raises(UserError) as caught:
        run(raw, job=square_root)
    assert f"{raw} at offset {offset_of(raw, POISON)}: ValueError: a value is negative" in str(caught.value)
    assert f"it reads: {POISON},-1" in str(caught.value)


def test_rejected_records_are_put_aside_each_with_file_offset_and_reason(raw: Path) -> None:
    made = run(raw, job=square_root, bad_records="reject", partition="key:id")
    bad = {POISON, *BROKEN}
    assert rows(raw.parent / "set")["id"].to_pylist() == [row for row in range(COUNT) if row not in bad]
    told = [json.loads(line) for line in (raw.parent / "set" / "_rejects.jsonl").read_text().splitlines()]
    assert {(one["file"], one["offset"]) for one in told} == {(str(raw), offset_of(raw, row)) for row in bad}
    assert all(one["reason"] and one["text"] for one in told)
    assert made.manifest.rejected == 4
    assert made.source_rows == COUNT


def test_a_row_after_broken_lines_is_found_at_its_own_offset(raw: Path) -> None:
    def no_late(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert 2500 not in batch["id"].to_pylist()
        return batch

    run(raw, job=no_late, bad_records="reject")
    told = [json.loads(line) for line in (raw.parent / "set" / "_rejects.jsonl").read_text().splitlines()]
    assert next(one["offset"] for one in told if "AssertionError" in one["reason"]) == offset_of(raw, 2500)


def test_rejects_of_an_older_data_set_do_not_stay(raw: Path) -> None:
    run(raw, bad_records="reject")
    assert (raw.parent / "set" / "_rejects.jsonl").exists()
    raw.write_text("id,value\n1,2\n")
    run(raw, bad_records="reject", overwrite=True)
    assert not (raw.parent / "set" / "_rejects.jsonl").exists()


def test_a_job_that_takes_nothing_makes_no_data_set(raw: Path) -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise NameError("oops")

    with pytest.raises(UserError, match=f"all {COUNT} records .*NameError: oops"):
        run(raw, job=broken, bad_records="reject")
    assert not (raw.parent / "set" / "_manifest.json").exists()
