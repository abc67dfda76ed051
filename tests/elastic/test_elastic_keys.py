"""The keys of a run and the file that holds them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal.core.errors import UserError
from shoal.elastic.keys import RunKeys, read_key_file, write_key_file

pytestmark = pytest.mark.unit
ADDRESS = "tcp://127.0.0.1:5000"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_key_file(tmp_path / "key", RunKeys.make().client(), ADDRESS)
    return tmp_path / "key"


def test_a_key_file_comes_back_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    keys = RunKeys.make().client()
    umask = os.umask(0)
    try:
        write_key_file(tmp_path / "key", keys, "tcp://other:1")
        write_key_file(tmp_path / "key", keys, ADDRESS)  # again, over the first
    finally:
        os.umask(umask)
    assert read_key_file(tmp_path / "key") == (keys, ADDRESS)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_the_file_is_closed_to_others_from_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = os.open

    def spy(path: object, flags: int, mode: int = 0o777, **rest: object) -> int:
        opened.append((flags & os.O_EXCL, mode))
        return real(path, flags, mode, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", spy)
    write_key_file(tmp_path / "key", RunKeys.make().client(), ADDRESS)
    assert opened == [(os.O_EXCL, 0o600)]


def test_a_key_file_that_others_can_read_is_refused(written: Path) -> None:
    written.chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        read_key_file(written)


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"address": 1}', b"null", b'{"address": "a", "server_public": "b"}']
)
def test_a_damaged_key_file_is_refused(written: Path, damage: bytes) -> None:
    written.write_bytes(damage)
    with pytest.raises(UserError, match="damaged"):
        read_key_file(written)


def test_half_a_key_file_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    for cut in range(0, len(whole) - 1, 7):
        written.write_bytes(whole[:cut])
        with pytest.raises(UserError, match="damaged"):
            read_key_file(written)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no key file .*nowhere"):
        read_key_file(tmp_path / "nowhere")


def test_secrets_are_never_printed() -> None:
    keys = RunKeys.make()
    for shown in (repr(keys), repr(keys.client()), str(keys)):
        assert keys.server_secret not in shown
        assert keys.client_secret not in shown


def test_every_run_has_keys_of_its_own() -> None:
    assert len({key for _ in range(3) for key in vars(RunKeys.make()).values()}) == 12
