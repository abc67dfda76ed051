"""The commands for several hosts: their help teaches, and a mistake is one message that names the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.main import main
from shoal.elastic.keys import RunKeys, write_key_file

pytestmark = pytest.mark.unit


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    write_key_file(tmp_path / "key", RunKeys.make().client(), "tcp://127.0.0.1:9")
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert error.startswith("shoal: error: "), error
    return error


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("join", "shoal join 192.168.1.5:40001 --key-file key"),
        ("scale", "shoal scale runs/mine --workers 4"),
        ("doctor", "shoal doctor --hosts node1,node2"),
    ],
)
def test_help_ends_with_examples(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert "Examples" in said
    assert words in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--listen", "203.0.113.9"), "is not an address of this host"),
        (("--listen", "127.0.0.1:x"), "'x' is no port"),
        (("--listen", "127.0.0.1", "--dry-run"), "--listen: a dry run"),
        (("--listen", "127.0.0.1", "--encrypt", "on"), "comm.encrypt=on cannot be kept between hosts"),
        (("--listen", "127.0.0.1", "--set", "comm.encrypt=on"), "comm.encrypt=on cannot be kept between hosts"),
    ],
)
def test_listen(place: Path, given: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refusal(capsys, "train", "script.py", *given)
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("127.0.0.1", "--key-file", "key"), "write it as ADDRESS:PORT"),
        (("127.0.0.1:9", "--key-file", "nowhere"), "there is no key file nowhere"),
        (("no-such-host.invalid:9", "--key-file", "key"), "no host 'no-such-host.invalid' is known"),
    ],
)
def test_join(place: Path, given: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refusal(capsys, "join", *given)


def test_a_key_that_others_can_read_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "key").chmod(0o644)
    assert "run `chmod 600 key`" in refusal(capsys, "join", "127.0.0.1:9", "--key-file", "key")


def test_nobody_there(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.launch.joining.invitation.__defaults__", (0.3,))
    assert "no run answers at 127.0.0.1:9" in refusal(capsys, "join", "127.0.0.1:9", "--key-file", "key")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--hosts", " , "), "--hosts: name at least one"),
        (("--hosts", "a,a"), "name each host once"),
        (("--hosts", "a", "--via", "ssh"), "{host} must be in it"),
        (("--listen", "127.0.0.1", "--expect", "0"), "--expect 0: at least 1"),
        (("--listen", "127.0.0.1", "--key-file", "key"), "--key-file key: is there already"),
        (("--join", "127.0.0.1:9", "--hosts", "a"), "give neither --hosts nor --listen"),
        (("--join", "127.0.0.1:9", "--key-file", "nowhere"), "there is no key file nowhere"),
        (("--wait", "-1"), "--wait -1: a time cannot be negative"),
    ],
)
def test_doctor(place: Path, given: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "--hosts" in given:
        given = ("--listen", "127.0.0.1", *given) if "--join" not in given else given
    assert words in refusal(capsys, "doctor", *given)
