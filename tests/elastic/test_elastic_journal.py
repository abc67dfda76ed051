"""What the coordinator writes down, and the store that it keeps."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from shoal.elastic import journal as journals
from shoal.elastic import keyvalues
from shoal.elastic.journal import Journal
from shoal.elastic.keyvalues import KeyValues
from shoal.elastic.messages import (
    Refused,
    StoreAdd,
    StoreCompareSet,
    StoreCount,
    StoreDelete,
    StoreGet,
    StoreSet,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal", "run")
    assert journal.whole
    journal.write({"view": 1}, {"a": b"\xff\x00"})
    assert not journal.whole
    journal.write(None, {"b": b"2", "a": None})
    journal.write({"view": 2}, {"c": b"3"})
    journal.close()
    return tmp_path / "journal"


def test_a_journal_gives_back_the_last_state_and_the_values(path: Path) -> None:
    again = Journal(path, "run")
    assert (again.state, again.values) == ({"view": 2}, {"b": b"2", "c": b"3"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_torn_last_line_is_passed_over_wherever_it_is_torn(path: Path) -> None:
    whole = path.read_bytes()
    first = whole.index(b'{"view": 1}}') + 13
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        again = Journal(path, "run")
        assert again.state in ({"view": 1}, {"view": 2})
        assert (again.state == {"view": 2}) == (cut > whole.index(b'{"view": 2}}') + 12)


def test_another_runs_journal_is_not_read_and_is_replaced(path: Path) -> None:
    other = Journal(path, "other run")
    assert (other.state, other.values) == (None, {})
    other.write({"view": 9}, {})
    other.close()
    assert Journal(path, "run").state is None
    assert Journal(path, "other run").state == {"view": 9}


@pytest.mark.parametrize(
    "damage", [b"", b"\xff\xfe", b"{}\n{}\n", b'{"run": "run"}\n[]\n', b'{"run": "run"}\n{"x": 1}\n']
)
def test_a_damaged_journal_is_an_empty_one(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "journal").write_bytes(damage)
    journal = Journal(tmp_path / "journal", "run")
    assert (journal.state, journal.values) == (None, {})


def test_a_journal_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_COMPACT_BYTES", 1000)
    journal = Journal(tmp_path / "journal", "run")
    for number in range(200):
        _ = journal.whole
        journal.write({"view": number, "padding": "x" * 50}, {})
        assert (tmp_path / "journal").stat().st_size < 1200
    journal.close()
    assert Journal(tmp_path / "journal", "run").state == {"view": 199, "padding": "x" * 50}


def test_after_a_failed_write_a_new_file_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal", "run")
    journal.write({"view": 1}, {})
    with monkeypatch.context() as full:

        def refuse(*args: object) -> int:
            raise OSError(28, "No space left on device")

        full.setattr(journals.os, "write", refuse)
        with pytest.raises(OSError, match="No space"):
            journal.write({"view": 2}, {})
        assert journal.whole
        with pytest.raises(OSError, match="No space"):
            journal.write({"view": 2}, {})
        assert journal.whole
    assert Journal(tmp_path / "journal", "run").state == {"view": 1}
    journal.write({"view": 3}, {})
    journal.close()
    assert Journal(tmp_path / "journal", "run").state == {"view": 3}


def test_the_store_does_what_torchs_stores_do() -> None:
    store = KeyValues()
    assert store.do(StoreSet("view-3/a", b"1"), 3) is None
    assert store.do(StoreGet(("view-3/a", "view-3/b")), 3) == [b"1", None]
    assert store.do(StoreAdd("view-3/n", 5), 3) == 5
    assert store.do(StoreAdd("view-3/n", -2), 3) == 3
    assert store.do(StoreCompareSet("view-3/c", b"", b"x"), 3) == b"x"
    assert store.do(StoreCompareSet("view-3/c", b"wrong", b"y"), 3) == b"x"
    assert store.do(StoreCompareSet("view-3/c", b"x", b"y"), 3) == b"y"
    assert store.do(StoreCount("view-3/"), 3) == 3
    assert store.do(StoreDelete("view-3/a"), 3) is True
    assert store.do(StoreDelete("view-3/a"), 3) is False
    store.do(StoreSet("view-3/word", b"word"), 3)
    assert isinstance(store.do(StoreAdd("view-3/word", 1), 3), Refused)


def test_an_older_view_can_no_longer_write() -> None:
    store = KeyValues()
    store.do(StoreSet("view-3/a", b"1"), 3)
    store.do(StoreSet("doctor/a", b"1"), 3)  # of no view
    for call in (
        StoreSet("view-3/a", b"2"),
        StoreAdd("view-3/n", 1),
        StoreCompareSet("view-3/a", b"1", b"2"),
        StoreDelete("view-3/a"),
        StoreSet("view-5/a", b"2"),
    ):
        assert isinstance(store.do(call, 4), Refused)
    assert store.values == {"view-3/a": b"1", "doctor/a": b"1"}
    store.drop_old(6)
    assert store.values == {"doctor/a": b"1"}


def test_the_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyvalues, "MOST_KEYS", 10)
    monkeypatch.setattr(keyvalues, "MOST_BYTES", 1000)
    store = KeyValues()
    answers = [store.do(StoreSet(f"view-1/{number}", b"x"), 1) for number in range(20)]
    assert answers[:10] == [None] * 10
    assert all(isinstance(answer, Refused) for answer in answers[10:])
    store.drop_old(9)
    for _ in range(100):  # a value that is replaced does not count twice
        assert store.do(StoreSet("view-9/a", b"x" * 400), 9) is None
    assert isinstance(store.do(StoreSet("view-9/b", b"x" * 600), 9), Refused)
