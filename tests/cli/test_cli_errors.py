"""A wrong command line: one message, status 2, at once, without torch and without a process."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.errors import UserError
from shoal.launch.descriptors import provide_descriptors

pytestmark = pytest.mark.unit
DEADLINE_S = 120.0
RUN = "runpy.run_module('shoal', run_name='__main__')"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "digits.py"
    path.write_text("raise SystemExit('the script was run')\n")
    return path


def shoal(*words: str, cwd: Path | None = None, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "-m", "shoal", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=cwd)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The message, once it is sure that there was one, and nothing else."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("shoal: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("shoal: error: ").strip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "0"], r"workers=0 \(from the command line\)"),
        (["--workers", "-3"], r"workers=-3"),
        (["--workers", "two"], r"--workers"),
        (["--strategy", "allreduse"], r"unknown strategy 'allreduse': did you mean 'allreduce'\?"),
        (
            ["--set", "strategy=ring"],
            r"unknown strategy 'ring'.*known: allreduce, async, auto, hybrid, incremental, parameter-server, single",
        ),
        (
            ["--set", "clp.norm=1"],
            r"unknown setting 'clp\.norm' in the command line: did you mean 'clip\.norm'",
        ),
        (["--set", "clip.norm=-1"], r"clip\.norm=-1 \(from the command line\): .*greater than 0"),
        (["--set", "clip.norm"], r"--set clip\.norm: write it as --set name=value"),
        (["--set", "clip.norm="], r"the value is missing"),
        (["--set", "=3"], r"--set =3: write it as"),
        (["--set", "weights=[3,1"], r"--set weights=\[3,1: the value cannot be read"),
        (["--set", "weights=[3,1]"], r"2 shares but workers=1"),
        (["--set", "global_batch=0"], r"global_batch=0"),
        (["--set", "checkpoint.every=50 furlongs"], r"'50 furlongs' is not a length of training"),
        (["--workers", "2", "--set", "workers=3"], r"workers is given twice, as 2 and as 3"),
        (["--set", "seed=1", "--set", "seed=2"], r"seed is given twice"),
        (["--epochs", "2", "--steps", "3"], r"epochs=2 and steps=3 both state the length"),
        (["--seed", "-1"], r"seed=-1"),
        (["--once", "maybe"], r"loader\.once='maybe' \(from the command line\): .*'on' or 'off'"),
        (["--encrypt", "maybe"], r"comm\.encrypt='maybe' \(from the command line\): .*'auto', 'on' or 'off'"),
        (["--codec", "int8", "--set", "comm.codec=bf16"], r"comm\.codec is given twice, as int8 and as bf16"),
        (["--worker", "2"], r"--workers.*see `shoal train --help`"),
    ],
)
def test_flags(script: Path, words: list[str], message: str) -> None:
    assert re.search(message, refused(shoal("train", str(script), *words)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers: 2\n- 3\n", r"--config .*run\.yaml: is not valid YAML \(line 2"),
        ("[1, 2]", r"must hold settings as `name: value` lines, but is a list"),
        ("just words", r"but is a single value \('just words'\)"),
        ("1: 2", r"names are not text"),
        (
            "clip:\n  nrom: 1\n",
            r"unknown setting 'clip\.nrom' in --config .*run\.yaml: did you mean 'clip\.norm'",
        ),
        ("eval_every: 50 stepz", r"eval_every='50 stepz' \(from --config .*run\.yaml\)"),
        ("strategy: allreduc", r"did you mean 'allreduce'"),
        ("workers: 0", r"workers=0 \(from --config"),
    ],
)
def test_file(script: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert re.search(message, refused(shoal("train", str(script), "--config", str(tmp_path / "run.yaml"))))


def test_a_file_that_is_not_there(script: Path, tmp_path: Path) -> None:
    (tmp_path / "value.yaml").write_text("")
    message = refused(shoal("train", str(script), "--config", str(tmp_path / "values.yaml")))
    assert "there is no such file: did you mean" in message
    assert "value.yaml" in message


def test_a_script_that_is_not_there(script: Path, tmp_path: Path) -> None:
    assert "did you mean" in refused(shoal("train", str(tmp_path / "digit.py"), "--workers", "2"))
    assert "is a directory" in refused(shoal("train", str(tmp_path)))


def test_a_command_that_is_not_there() -> None:
    assert "Did you mean 'train'?" in refused(shoal("trains"))
    assert "SCRIPT" in refused(shoal("train"))


def test_a_refusal_leaves_no_run_directory(script: Path, tmp_path: Path) -> None:
    refused(shoal("train", str(script), "--workers", "0", "--run-dir", "mine", cwd=tmp_path))
    assert {entry.name for entry in tmp_path.iterdir()} == {"digits.py"}


def test_the_command_line_itself_never_imports_torch(script: Path) -> None:
    for words in (
        ["--help"],
        ["train", "--help"],
        ["settings"],
        ["--version"],
        ["train", str(script), "-w", "0"],
    ):
        done = shoal(*words, python=("-X", "importtime"))
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "shoal.cli.main" in imported
        assert "torch" not in imported


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"model\xff.py")
    message = refused(shoal("train", name, cwd=tmp_path))
    assert message.startswith("the command line has a name that is no UTF-8: model\\xff.py. Rename it")
    (tmp_path / name).mkdir()
    message = refused(shoal("train", "x.py", cwd=tmp_path / name))
    assert message.startswith("the working directory has a name that is no UTF-8: ")


def test_too_few_files_may_be_open(script: Path) -> None:
    """`ulimit -n 24`: where the limit cannot be raised, that is said, with the number that is needed."""
    line = f"import resource as r, runpy; r.setrlimit(r.RLIMIT_NOFILE, (24, 24)); {RUN}"
    command = [sys.executable, "-c", line, "train", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    message = refused(done)
    assert "a process may open only 24 files here" in message
    assert "`ulimit -n 1024`" in message


def test_a_low_limit_that_may_be_raised_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    provide_descriptors(2)
    assert limits[-1] == (1024, 4096)
    provide_descriptors(400)
    assert limits[-1] == (128 + 8 * 400, 4096)
    with pytest.raises(UserError, match=r"only 4096 files.*needs about 4928.*ulimit -n 4928"):
        provide_descriptors(600)
