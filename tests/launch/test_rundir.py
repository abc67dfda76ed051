"""Run directories: to whom they belong, how they are written, and what is said when they cannot be."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import threading
from datetime import datetime
from pathlib import Path

import pytest

from shoal.core.config import Config
from shoal.core.errors import DiskError, RunDirError
from shoal.core.events import Warned
from shoal.launch.reserve import SIZE_BYTES, Reserve
from shoal.launch.rundir import RunDir, default_path, disk_error, other_run, replace_file, to_save

pytestmark = pytest.mark.unit


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('hello')")
    return str(path)


def config(**settings: object) -> Config:
    return Config.model_validate({"global_batch": 8, "epochs": 2, **settings})


def test_the_default_path_names_script_and_time() -> None:
    now = datetime(2024, 3, 1, 12, 30, 5)
    assert default_path("deep/train.py", now) == Path("runs/train-20240301-123005")
    assert default_path(None, now) == Path("runs/run-20240301-123005")


def test_a_new_directory_holds_the_whole_configuration(tmp_path: Path, script: str) -> None:
    run_dir = RunDir(tmp_path / "a" / "run")
    assert RunDir(run_dir.path).exists is False
    run_dir.create(config(seed=5), script)
    assert run_dir.exists
    saved = run_dir.saved()
    assert saved["seed"] == 5
    assert saved["script"]["path"] == script
    assert {key: saved[key] for key in config().to_json()} == config(seed=5).to_json()
    assert run_dir.checkpoints.is_dir()
    assert run_dir.logs.is_dir()
    assert not list(run_dir.path.glob(".*.tmp"))


def test_a_run_may_go_on_with_one_pass_for_each_grain(tmp_path: Path, script: str) -> None:
    """As an error in the middle of a run may advise, where draws turn out not to be told apart by sample."""
    RunDir(tmp_path / "run").create(config(passes="merged", draws="sample"), script)
    RunDir(tmp_path / "run").create(config(passes="grain", draws="grain"), script)
    RunDir(tmp_path / "run").keep(config(passes="grain", draws="grain"), script)
    with pytest.raises(RunDirError, match="passes=grain, but now passes=merged"):
        RunDir(tmp_path / "run").create(config(passes="merged", draws="sample"), script)


def test_the_same_run_may_go_on_with_other_workers(tmp_path: Path, script: str) -> None:
    RunDir(tmp_path / "run").create(config(workers=1), script)
    RunDir(tmp_path / "run").create(config(workers=4, epochs=9), script)
    assert RunDir(tmp_path / "run").saved()["workers"] == 1, "it has not begun, and may never"
    RunDir(tmp_path / "run").keep(config(workers=4, epochs=9), script)
    assert RunDir(tmp_path / "run").saved()["workers"] == 4


def test_a_moved_or_an_edited_script_is_the_same(tmp_path: Path, script: str) -> None:
    RunDir(tmp_path / "run").create(config(), script)
    Path(script).write_text("print('edited')")
    RunDir(tmp_path / "run").create(config(), script)
    RunDir(tmp_path / "run").keep(config(), script)
    moved = Path(script).rename(tmp_path / "moved.py")
    RunDir(tmp_path / "run").create(config(), str(moved))


def test_another_script_is_refused(tmp_path: Path, script: str) -> None:
    RunDir(tmp_path / "run").create(config(), script)
    other = tmp_path / "other.py"
    other.write_text("pass")
    with pytest.raises(RunDirError, match=r"belongs to the script .*train\.py, not to .*other\.py"):
        RunDir(tmp_path / "run").create(config(), str(other))


def test_another_configuration_is_refused_by_name(tmp_path: Path, script: str) -> None:
    RunDir(tmp_path / "run").create(config(), script)
    with pytest.raises(RunDirError, match="global_batch=8, but now global_batch=16"):
        RunDir(tmp_path / "run").create(config(global_batch=16), script)
    with pytest.raises(RunDirError, match=r"clip\.norm"):
        RunDir(tmp_path / "run").create(config(clip={"norm": 1.0}), script)
    assert RunDir(tmp_path / "run").saved()["global_batch"] == 8


def test_a_directory_with_other_things_is_refused(tmp_path: Path, script: str) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunDirError, match="is not empty and is no run directory"):
        RunDir(tmp_path).create(config(), script)


def test_what_a_killed_run_was_about_to_write_is_cleared_away_and_what_the_launcher_writes_is_not(
    tmp_path: Path, script: str
) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    for name in (f".config.yaml.{gone.pid}.tmp", f".coordinator.json.{os.getppid()}.tmp"):
        (run_dir.path / name).write_text("half of i")
    run_dir.create(config(), script)
    assert [entry.name for entry in run_dir.path.glob(".*.tmp")] == [f".coordinator.json.{os.getppid()}.tmp"]


@pytest.mark.parametrize("text", ["[1, 2", "- a\n- b\n", ""])
def test_a_damaged_configuration_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunDirError, match=r"config\.yaml"):
        RunDir(tmp_path).saved()


def test_events_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    def write(who: int) -> None:
        for number in range(100):
            RunDir(tmp_path).append(Warned(f"{who} {number} " + "x" * 500))

    writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert len(lines) == 400
    assert {line["kind"] for line in lines} == {"warning"}
    assert len({line["message"] for line in lines}) == 400


def test_a_summary_is_read_back_and_a_broken_one_is_none(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert run_dir.summary() is None
    run_dir.write_summary({"status": "completed"})
    assert run_dir.summary() == {"status": "completed"}
    run_dir.summary_file.write_text("{")
    assert run_dir.summary() is None


def test_one_run_at_a_time(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    with run_dir.locked(), pytest.raises(RunDirError, match="in use by another run"), run_dir.locked():
        pass
    with run_dir.locked():
        pass


def test_what_the_disk_says_becomes_an_error_with_a_remedy(tmp_path: Path) -> None:
    for number, words in ((errno.ENOSPC, "no space left"), (errno.EROFS, "cannot be written"), (errno.EIO, "used")):
        assert words in str(disk_error(tmp_path, OSError(number, os.strerror(number))))
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="cannot be used") as refused:
        RunDir(tmp_path / "file" / "run").create(config(), None)
    assert not isinstance(refused.value, DiskError), "before the run has begun, nothing has failed"
    with pytest.raises(DiskError, match="cannot be used"):
        RunDir(tmp_path / "file" / "run").write_summary({})


def test_space_is_held_back_and_given_back(tmp_path: Path) -> None:
    held = Reserve(tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_blocks * 512 >= SIZE_BYTES, "it is really there"
    held.give_back()
    held.give_back()
    assert not list(tmp_path.iterdir())
    Reserve(tmp_path / "missing").give_back()


def test_what_a_killed_launcher_held_back_is_given_back_by_the_next_run(tmp_path: Path) -> None:
    Reserve(tmp_path)
    (file,) = tmp_path.iterdir()
    ended = file.rename(tmp_path / f".reserve.{1 << 30}.tmp")  # no process has that number
    RunDir(tmp_path / "run").create(config(), None)
    kept, left = Reserve(tmp_path / "run"), tmp_path / "run" / ended.name
    ended.rename(left)
    RunDir(tmp_path / "run").create(config(), None)
    assert not left.exists()
    assert list((tmp_path / "run").glob(".reserve*")), "but not what one that lives holds"
    kept.give_back()


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match=r"the run directory .*/model\\xff has a name that is no UTF-8"):
        RunDir(tmp_path / os.fsdecode(b"model\xff")).create(config(), None)
    assert not list(tmp_path.iterdir())


def test_a_failure_never_replaces_a_result(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    failed = {"status": "failed", "faults": ["a"]}
    run_dir.write_summary(failed)
    assert run_dir.summary() == failed
    assert not run_dir.has_result
    for status in ("completed", "stopped", "interrupted"):
        result = {"status": status, "faults": ["a", "b"]}
        run_dir.write_summary(result)
        run_dir.write_summary({"status": "failed", "faults": ["c"]})
        assert run_dir.summary() == result
        assert run_dir.faults() == ["a", "b", "c"]
    run_dir.write_summary({"status": "completed", "faults": ["a", "b", "c"]})
    assert run_dir.faults() == ["a", "b", "c"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "sub"
    path.mkdir()  # a directory: the rename fails
    with pytest.raises(OSError, match="directory"):
        replace_file(path, "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["sub"]


def test_a_setting_that_is_newer_than_the_run_had_its_default(script: str) -> None:
    saved = to_save(config(), script)
    del saved["statistics"]
    assert other_run(saved, config(), script) is None
    assert "statistics=grain, but now statistics=global" in (
        other_run(saved, config(statistics="global"), script) or ""
    )
