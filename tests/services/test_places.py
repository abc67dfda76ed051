"""Places on real HDFS, on real S3 and on a disk: the same behaviour everywhere; and a real web server, to read from."""

from __future__ import annotations

import functools
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.data.places import AccessError, Place

SOON_S = 15.0  # with room for a busy machine; the promise is 5 s


@pytest.fixture(params=["disk", "hdfs", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place that can be written, with nothing there."""
    return Place.of(tmp_path / "place" if request.param == "disk" else request.getfixturevalue(request.param))


def test_what_was_written_is_there_whole_and_in_ranges(folder: Place) -> None:
    file = folder / "numbers.bin"
    assert not file.exists()
    file.write(bytes(range(100)))
    assert file.exists()
    assert file.nbytes() == 100
    assert file.read() == bytes(range(100))
    assert file.read(10, 20) == bytes(range(10, 20))
    assert file.read(95, 1000) == bytes(range(95, 100))
    with file.open() as opened:
        opened.seek(50)
        assert opened.read(5) == bytes(range(50, 55))


def test_files_are_listed_in_order_with_their_sizes_and_without_hidden_ones(folder: Place) -> None:
    for name, nbytes in (("b/2.csv", 2), ("a.csv", 1), ("_SUCCESS", 3), ("b/.2.csv.crc", 4)):
        (folder / name).write(b"x" * nbytes)
    assert [(entry.place.url, entry.nbytes) for entry in folder.files()] == [
        (f"{folder.url}/a.csv", 1),
        (f"{folder.url}/b/2.csv", 2),
    ]
    assert [entry.place for entry in (folder / "a.csv").files()] == [folder / "a.csv"]
    assert folder.is_dir()
    assert not (folder / "a.csv").is_dir()


def test_the_mark_of_a_file_changes_with_its_content(folder: Place) -> None:
    file = folder / "a.csv"
    file.write(b"one")
    before = file.files()[0].mark
    assert before
    assert file.files()[0].mark == before
    file.write(b"two")
    assert file.files()[0].mark != before


def test_a_write_replaces_what_was_there(folder: Place) -> None:
    file = folder / "model.bin"
    file.write(b"first")
    file.write(b"second, and longer")
    assert file.read() == b"second, and longer"
    assert [entry.place.name for entry in folder.files()] == ["model.bin"]


def test_a_write_that_fails_leaves_what_was_there(folder: Place) -> None:
    file = folder / "model.bin"
    file.write(b"first")

    def fail() -> None:
        with file.writing() as opened:
            opened.write(b"half of the second")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert file.read() == b"first"
    assert list(folder.fs.find(folder.path)) == [file.path]  # no draft either


def test_what_another_process_writes_is_seen_when_it_is_whole_and_never_if_it_is_killed(folder: Place) -> None:
    (folder / "a").write(b"1")
    assert [entry.place.name for entry in folder.files()] == ["a"]
    script = (
        f"import sys\nfrom shoal.data.places import Place\nfolder = Place.of({folder.url!r})\n"
        "(folder / 'b').write(b'2')\n"
        "with (folder / 'model.bin').writing() as file:\n"
        "    file.write(b'x' * (12 << 20))\n    print('half', flush=True)\n    sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        writer.send_signal(signal.SIGKILL)
    assert not (folder / "model.bin").exists()
    assert [entry.place.name for entry in folder.files()] == ["a", "b"]
    (folder / "model.bin").write(b"by another one")
    assert (folder / "model.bin").read() == b"by another one"


def test_rename_replaces_and_remove_takes_all(folder: Place) -> None:
    (folder / "a").write(b"a")
    (folder / "b").write(b"b")
    (folder / "a").rename(folder / "b")
    assert (folder / "b").read() == b"a"
    assert not (folder / "a").exists()
    folder.remove()
    assert not (folder / "b").exists()
    folder.remove()  # what is gone may be removed again


def test_what_is_not_there_is_named(folder: Place) -> None:
    missing = folder / "missing.csv"
    for ask in (missing.read, missing.files, missing.nbytes, missing.open, functools.partial(missing.read, 0, 10)):
        with pytest.raises(AccessError, match=r"missing\.csv does not exist: check the path"):
            ask()


# ---- nobody there, or not for you


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port of this machine on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port of this machine that takes no connection and does not refuse it."""
    with socket.socket() as listening, socket.socket() as first:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        first.connect(listening.getsockname())
        yield listening.getsockname()[1]


@pytest.mark.parametrize("url", ["hdfs://127.0.0.1:{port}/data", "http://127.0.0.1:{port}/data", "s3://shoal/data"])
def test_where_nobody_listens_is_told_in_seconds(url: str, nobody: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody}")
    began = time.monotonic()
    with pytest.raises(AccessError, match=f"cannot be reached: 127.0.0.1, port {nobody}: Connection refused. Check"):
        Place.of(url.format(port=nobody)).files()
    assert time.monotonic() - began < SOON_S


def test_one_who_does_not_answer_is_waited_for_some_seconds_only(silent: int) -> None:
    began = time.monotonic()
    with pytest.raises(AccessError, match="no answer within 5 s"):
        Place.of(f"hdfs://127.0.0.1:{silent}/data").files()
    assert time.monotonic() - began < SOON_S


def test_a_name_that_nobody_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AccessError, match=r"cannot be reached: no-such-host\.invalid, port 9000: "):
        Place.of("hdfs://no-such-host.invalid:9000/data").exists()


@pytest.mark.parametrize("key", ["shoal", "somebody-else"])
def test_wrong_keys_are_told_as_such(s3: str, key: str) -> None:
    place = Place.of(s3, {"key": key, "secret": "wrong"})
    for ask in (place.files, place.exists, functools.partial((place / "a").write, b"a"), (place / "a").read):
        with pytest.raises(AccessError, match=r"may not be used .*: check the permissions or credentials"):
            ask()


def test_a_missing_bucket_is_told_as_such(s3: str) -> None:
    for ask in (Place.of("s3://no-such-bucket/data").files, Place.of("s3://no-such-bucket").files):
        with pytest.raises(AccessError, match=r"s3://no-such-bucket.* does not exist: check the path"):
            ask()


def test_no_keys_at_all_are_told_as_such(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessError, match="needs credentials and there are none: set AWS_ACCESS_KEY_ID"):
        Place.of(s3, {"anon": False}).files()


# ---- a web server


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files with ranges, as web servers have them; one path that may not be read."""

    def do_GET(self) -> None:
        if self.path == "/secret.csv":
            self.send_error(403)
            return
        wanted = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        data = path.read_bytes()
        part = data[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *words: object) -> None:  # type: ignore[override]
        """Nobody reads it."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    handler = functools.partial(_Handler, directory=os.fspath(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path
        server.shutdown()
        thread.join()


def test_a_web_server_is_read_in_ranges(web: tuple[str, Path]) -> None:
    url, root = web
    (root / "numbers.bin").write_bytes(bytes(range(100)))
    file = Place.of(f"{url}/numbers.bin")
    assert file.exists()
    assert file.nbytes() == 100
    assert file.read() == bytes(range(100))
    assert file.read(10, 20) == bytes(range(10, 20))
    assert [(entry.place, entry.nbytes) for entry in file.files()] == [(file, 100)]


def test_what_a_web_server_has_not_or_refuses_is_told(web: tuple[str, Path]) -> None:
    with pytest.raises(AccessError, match=r"missing\.csv does not exist: check the path"):
        Place.of(f"{web[0]}/missing.csv").read()
    with pytest.raises(AccessError, match=r"secret\.csv may not be used"):
        Place.of(f"{web[0]}/secret.csv").read()
