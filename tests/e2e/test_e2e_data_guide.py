"""Every file and every command of docs/data-guide.md, from top to bottom, against a real HDFS."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e import ROOT, Process

from shoal.testing.services import ServiceUnavailable, service

PAGE = ROOT / "docs" / "data-guide.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`(\w+\.py)`:\s*$")

PAGE_S = 500.0  # on a busy machine

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(PAGE_S + 60)]


def blocks() -> tuple[dict[str, str], list[str]]:
    """The files of the page by their names, and its commands."""
    text, files, commands = PAGE.read_text(), dict[str, str](), list[str]()
    for block in _BLOCK.finditer(text):
        if block[1] == "python":
            named = _NAMED.search(text[: block.start()].rstrip())
            assert named, f"no file is named before:\n{block[2]}"
            files[named[1]] = block[2]
        else:
            assert block[1] == "sh", block[1]
            commands.append(block[2])
    return files, commands


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with the scripts of a clone, in which nothing runs afterwards."""
    try:
        service("hdfs").fetch()
    except ServiceUnavailable as reason:
        pytest.skip(f"no hdfs can be had here: {reason}")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    yield tmp_path
    service("hdfs").stop(tmp_path / "hdfs-data")


def test_the_page_from_a_raw_csv_on_hdfs_to_a_trained_model(
    place: Path, start: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory
) -> None:
    files, commands = blocks()
    for name, text in files.items():
        (place / name).write_text(text)
    assert commands.pop(0).startswith("pip install")  # is done
    script = "set -eu\n" + "".join(f"echo '<<{number}>>'\n{block}" for number, block in enumerate(commands))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = start(["bash", "-c", script], directory=place, PATH=path, TMPDIR=str(tmp_path_factory.mktemp("guide")))
    done = process.end(PAGE_S)
    assert done.status == 0, f"{done.out[-4000:]}\n{done.err[-4000:]}"
    said = dict(zip(commands, re.split(r"<<\d+>>\n", done.out)[1:], strict=True))

    def answer(words: str) -> str:
        return next(said[block] for block in commands if words in block)

    assert "4 shards" in answer("shoal data inspect")
    assert answer("shoal data inspect").count(",far,") == 4  # with their text, in the file of rejects
    skew, plain = (
        float(re.findall(words, answer("key:zone"))[-1]) for words in (r"skew\s+([\d.]+)", r"hashing\s+([\d.]+)")
    )
    assert skew <= 1.1 < 1.5 < plain
    assert "going on from step" in answer("kill -9")
    assert "'missed': 0, 'repeated': 0" in answer("compare.py")
    assert not (place / "hdfs-data").exists()
