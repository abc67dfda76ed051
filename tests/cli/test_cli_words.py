"""Words that a newcomer types: other frameworks' names, switches with values, the first letters of something."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.completing import assignments
from shoal.cli.main import main
from shoal.cli.settings import HELP, about
from shoal.core.aliases import _OURS, _SAID, setting_meant_by
from shoal.core.config import known_settings
from shoal.core.errors import ConfigError

pytestmark = pytest.mark.unit
DEADLINE_S = 120.0


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "digits.py").write_text("")
    return str(tmp_path / "digits.py")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


def test_what_others_call_it_is_a_setting_and_not_another_one() -> None:
    known = known_settings()
    assert set(_OURS.values()) <= set(known)
    assert not (set(_OURS) | set(_SAID)) & set(known)
    assert setting_meant_by("Batch-Size", known) == "global_batch"
    assert setting_meant_by("codec", known) == "comm.codec"
    assert setting_meant_by("every", known) == "checkpoint.every"
    assert setting_meant_by("nonsense", known) is None


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("batch_size", "here it is called 'global_batch'"),
        ("lr", "the optimizer of the script has it"),
        ("num_workers", "'loader.processes' of those that read"),
        ("max_epochs", "here it is called 'epochs'"),
        ("gradient_clip_val", "here it is called 'clip.norm'"),
        ("codec", "here it is called 'comm.codec'"),
        ("worker", "did you mean 'workers'?"),
    ],
)
def test_a_word_of_another_framework(script: str, capsys: pytest.CaptureFixture[str], word: str, said: str) -> None:
    message = refused(capsys, "train", script, "--set", f"{word}=3")
    assert message.startswith(f"shoal: error: unknown setting '{word}' in the command line: ")
    assert said in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch-size", "3"], "No such option: --batch-size: write --set global_batch=..."),
        (["--accumulate", "3"], "write --set accumulate=..."),
        (["--lr", "3"], "the optimizer of the script has it"),
        (["--evaluator", "true"], "--evaluator is a switch, and takes no value: leave 'true' out"),
        (["--json", "yes"], "--json is a switch"),
        (["data.csv"], "what is meant for the script stands behind --, as in SCRIPT -- data.csv"),
        (["--set", "hybrid.outer=foo"], "hybrid.outer='foo' cannot join teams: known: allreduce, async,"),
        (["--set", "hybrid.inner=single"], "hybrid.inner='single' cannot train within a team: known: allreduce"),
    ],
)
def test_what_is_no_option(script: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert said in refused(capsys, "train", script, *words)


def test_switches_are_shown_as_switches(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["train"], ["drill"], ["prepare"], ["doctor"], ["settings"], ["data", "inspect"]):
        assert main([*command, "--help"]) == 0
        text = capsys.readouterr().out
        assert "--help" in text
        assert "bool" not in text, command


def test_settings_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "mirror"]) == 0
    text = capsys.readouterr().out
    assert "checkpoint.mirror_wait_s" in text
    assert "global_batch" not in text
    assert about("batch_size") == ["global_batch"]
    assert about("checkpoint")[0].startswith("checkpoint.")
    assert main(["settings", "lr"]) == 0
    assert "the optimizer of the script has it" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no setting is about 'learning_rate': the optimizer of the script has it"):
        about("learning_rate")
    with pytest.raises(ConfigError, match="no setting is about 'epohcs': did you mean 'epochs'"):
        about("epohcs")


def test_assignments_are_completed_to_what_can_be_given() -> None:
    assert assignments("comm.ba") == [f"comm.backend={one}" for one in ("auto", "shm", "gloo", "hierarchical", "nccl")]
    assert assignments("comm.backend=g") == ["comm.backend=gloo"]
    assert assignments("global") == ["global_batch="]
    assert len({one.partition("=")[0] for one in assignments("")}) == len(HELP)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    """Asks bash itself, with the function that `shoal --show-completion` gives it."""
    shoal = tmp_path / "shoal"
    shoal.write_text(f'#!/bin/sh\nexec {sys.executable} -X importtime -m shoal "$@" 2>>{tmp_path}/imports\n')
    shoal.chmod(0o755)
    asked = [["tr"], ["train", "a.py", "--strategy", "in"], ["train", "a.py", "--ev"], ["settings", "checkpoint.k"]]
    ask = "COMP_WORDS=(shoal {}); COMP_CWORD={}; _shoal_completion shoal; echo ${{COMPREPLY[*]}}"
    text = "\n".join(ask.format(" ".join(words), len(words)) for words in asked)
    done = subprocess.run(
        ["bash", "--norc", "-c", f'eval "$(_SHOAL_COMPLETE=source_bash shoal)"\n{text}'],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.splitlines() == [
        "train",
        "incremental",
        "--evaluator",
        "checkpoint.keep_last checkpoint.keep_best",
    ]
    assert "torch" not in (tmp_path / "imports").read_text()
