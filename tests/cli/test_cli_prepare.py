"""`shoal prepare` and `shoal data inspect`: help that teaches, figures for people and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from shoal.cli.main import main
from shoal.cli.prepare_progress import progress_for
from shoal.cli.shard_table import bar


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    users = np.random.default_rng(0).zipf(1.2, 4000) % 1000
    lines = [f"{row},{user}" for row, user in enumerate(users.tolist())]
    (tmp_path / "raw.csv").write_text("id,user\n" + "\n".join([*lines, "broken,1"]) + "\n")
    return tmp_path / "raw.csv"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["prepare"], ("Examples", "--partition key:user --shards 16", "--bad-records", "docs/data.md")),
        (["data", "inspect"], ("Examples", "shoal data inspect ratings")),
    ],
)
def test_help_teaches(command: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in words)


def test_a_data_set_is_made_and_looked_at(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dest = str(raw.parent / "set")
    asked = ["prepare", str(raw), dest, "--partition", "key:user", "--shards", "4", "--bad-records", "reject"]
    assert main([*asked, "--processes", "1"]) == 0
    said = capsys.readouterr()
    assert "4,000 rows of 4,001" in said.out
    assert "skew 1.0" in said.out
    assert "plain hashing" in said.out
    assert "rejected: 1 records" in said.out
    assert "map: 1 of 1 tasks" in said.err
    assert "rows (" in said.err

    assert main(["data", "inspect", dest]) == 0
    shown = capsys.readouterr().out
    assert "█" in shown
    assert "heavy key" in shown
    assert "plain hashing" in shown

    assert main(["data", "inspect", dest, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["skew"] <= 1.1 < told["plain_skew"]
    assert told["heavy"][0]["key"] == 1
    assert told["schema"] == {"id": "int64", "user": "int64"}
    assert told["rejected"] == 1
    assert sum(shard["rows"] for shard in told["shards"]) == told["rows"] == 4000

    assert main(asked) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_raw_files_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rides.csv").write_text("id,city,km\n1,Ulm,1.5\n2,,\n3,Rom,2.5\n4,Rom\n")
    assert main(["data", "inspect", str(tmp_path / "rides.csv")]) == 0
    said = capsys.readouterr().out
    assert "csv, 3 records" in said
    assert "in 1 file" in said
    assert re.search(r"km +double +1 +1.5 +2 +2.5 +1.5, , 2.5", said), said
    assert "Ulm, , Rom" in said
    assert "bad record" in said
    assert main(["data", "inspect", str(tmp_path / "rides.csv"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["records"], told["columns"][2]["missing"], told["first"][0]["city"]) == (3, 1, "Ulm")


def test_more_records_than_are_looked_at_are_counted(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(raw)]) == 0
    said = capsys.readouterr().out
    assert "4,000 records" in said
    assert "of the first 1,000 records" in said


def test_named_data_and_images_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    assert main(["data", "inspect", "digits:train"]) == 0
    said = capsys.readouterr().out
    assert "1,437 records" in said
    assert main(["data", "inspect", "digits"]) == 2
    assert "digits:train" in capsys.readouterr().err
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "a.png")
    assert main(["data", "inspect", str(tmp_path)]) == 0
    assert "images, 1 records" in capsys.readouterr().out
    assert main(["data", "inspect", str(tmp_path), "--json"]) == 0
    assert "bytes" in json.loads(capsys.readouterr().out)["first"][0]["image"]


def test_what_is_no_data_set_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(tmp_path)]) == 2
    assert "has no files" in capsys.readouterr().err
    assert main(["data", "inspect", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_where_nobody_looks_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_for(quiet=False) as progress:
        progress.stage("map", 3, 300)
        progress.advance(1, 10, 100, done_before=True)
        progress.advance(1, 10, 100)
        progress.advance(1, 10, 100)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("shoal: map: 3 of 3 tasks, 300 B (")
    assert "30 rows" in line
    with progress_for(quiet=True) as progress:
        progress.stage("map", 1, 1)
        progress.advance(1, 1, 1)
    assert capsys.readouterr().err == ""


def test_bars_are_as_long_as_what_they_show() -> None:
    assert bar(8, 8, 4) == "████"
    assert bar(3, 8, 4) == "█▌"
    assert bar(0, 8, 4) == ""
    assert bar(0, 0, 4) == ""
