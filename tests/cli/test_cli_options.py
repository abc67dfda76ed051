"""Flags and file become layers of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli import options
from shoal.cli.head_start import wants_workers
from shoal.cli.settings import COMMON, HELP, choices_of, default_of
from shoal.core.config import CheckpointSettings, Config, known_settings
from shoal.core.errors import ConfigError
from shoal.core.length import Length
from shoal.strategies.names import STRATEGIES

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clip.weights=[-1,1]", ("clip.weights", [-1, 1])),
        ("weights=[3,1]", ("weights", [3, 1])),
        ("checkpoint.every=50 steps", ("checkpoint.every", "50 steps")),
        ("loader.shuffle=false", ("loader.shuffle", False)),
        ("clip.norm=1.5", ("clip.norm", 1.5)),
        ("run_dir=runs/a=b", ("run_dir", "runs/a=b")),
        ("run_dir=2026-01-31", ("run_dir", "2026-01-31")),
        ("clip={norm: 1}", ("clip", {"norm": 1})),
        ("epochs=null", ("epochs", None)),
    ],
)
def test_assignment(text: str, expected: tuple[str, object]) -> None:
    assert options.assignment(text) == expected


def test_values_reach_the_configuration() -> None:
    given = options.layers(
        None,
        {"workers": 2, "seed": None},
        ["clip.weights=[-1,1]", "weights=[3,1]", "checkpoint.every=50 steps", "clip.norm=1e-3"],
    )
    config = options.check(given)
    assert config.clip.weights == (-1.0, 1.0)
    assert config.clip.norm == 1e-3
    assert config.weights == (3.0, 1.0)
    assert config.checkpoint == CheckpointSettings(every=Length(50, "steps"))


def test_flags_win_over_the_file_and_a_length_over_the_other(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("workers: 2\nsteps: 100\nclip:\n  norm: 1\nloader.shuffle: false\n")
    given = options.layers(file, {"workers": 3, "epochs": 5}, [])
    assert [where for where, _ in given] == [f"--config {file}", "the command line"]
    config = options.check(given)
    assert (config.workers, config.epochs, config.steps) == (3, 5, None)
    assert config.clip.norm == 1
    assert config.loader.shuffle is False


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("# nothing yet\n")
    assert options.read_file(tmp_path / "run.yaml") == {}


def test_the_saved_configuration_of_a_run_gives_a_new_run(tmp_path: Path) -> None:
    from shoal.launch.rundir import RunDir

    (tmp_path / "a.py").write_text("")
    saved = Config(global_batch=64, epochs=3, run_dir=str(tmp_path / "run"))
    RunDir(tmp_path / "run").create(saved, str(tmp_path / "a.py"))
    config = options.check(options.layers(tmp_path / "run" / "config.yaml", {}, []))
    assert config == saved.model_copy(update={"run_dir": None})


def test_an_unknown_key_called_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("script: digits.py\n")
    with pytest.raises(ConfigError, match="unknown setting 'script'"):
        options.check(options.layers(tmp_path / "run.yaml", {}, []))


def test_every_setting_is_explained() -> None:
    assert list(HELP) == known_settings()
    assert set(COMMON) <= set(HELP)
    assert default_of("checkpoint.every") == "1 epoch"
    assert default_of("loader.shuffle") == "true"
    assert default_of("global_batch") == ""
    assert choices_of("comm.backend") == ["auto", "shm", "gloo", "hierarchical", "nccl"]


def test_every_strategy_is_where_its_name_says() -> None:
    import importlib

    for place in STRATEGIES.values():
        module, _, name = place.partition(":")
        assert isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "a.py"], True),
        (["train", "a.py", "--", "--help"], True),
        (["train", "a.py", "--help"], False),
        (["train"], False),
        (["settings"], False),
        ([], False),
    ],
)
def test_torch_is_imported_early_only_for_what_will_need_it(words: list[str], expected: bool) -> None:
    assert wants_workers(words) is expected
