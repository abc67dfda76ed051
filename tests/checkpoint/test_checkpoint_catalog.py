"""Which checkpoints a directory holds, and what may be cleared away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_cases import assert_belongs_together, names_in, save

from shoal.checkpoint.catalog import Catalog, name_of, step_of
from shoal.checkpoint.durable import replacing

pytestmark = pytest.mark.unit


def test_names_and_steps() -> None:
    assert name_of(50) == "step-00000050"
    assert all(step_of(name_of(step)) == step for step in (0, 7, 99_999_999, 100_000_000))
    assert [step_of(name) for name in ("step-1", "step-0000005x", ".tmp-step-00000050-12", "best")] == [None] * 4


def test_entries_are_in_order_of_steps(tmp_path: Path) -> None:
    for step in (100_000_000, 3, 20):
        save(tmp_path, step)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-00000099").write_text("a file, not a checkpoint")
    (tmp_path / ".tmp-step-00000101-1").mkdir()
    catalog = Catalog(tmp_path)
    assert [entry.step for entry in catalog.entries()] == [3, 20, 100_000_000]
    newest = catalog.newest_valid(pytest.fail)
    assert newest is not None
    assert_belongs_together(newest)


def test_no_checkpoints_is_not_an_error(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        catalog = Catalog(directory)
        assert (catalog.entries(), catalog.newest_valid(pytest.fail), catalog.clean()) == ([], None, [])


def test_describing_reads_the_manifest_only(tmp_path: Path) -> None:
    save(tmp_path, 4, test_loss=0.25)
    (tmp_path / "step-00000004" / "state-00000.safetensors").unlink()
    save(tmp_path, 5)
    (tmp_path / "step-00000005" / "manifest.json").unlink()
    catalog = Catalog(tmp_path)
    described = catalog.describe(catalog.entries()[0])
    assert (described.cursor.step, described.meta["test_loss"]) == (4, 0.25)
    assert [record.name for record in catalog.records()] == ["step-00000004"]


def test_what_dead_writers_left_is_cleared_and_live_work_is_not(tmp_path: Path) -> None:
    save(tmp_path, 4)
    for left in (".tmp-step-00000005-1", ".tmp-removed-step-00000003-99"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "state-00000.safetensors").write_bytes(b"half")
    with replacing(tmp_path / "step-00000006") as live:
        assert Catalog(tmp_path).clean() == [".tmp-removed-step-00000003-99", ".tmp-step-00000005-1"]
        assert names_in(tmp_path) == [live.name, "step-00000004"]
    assert names_in(tmp_path) == ["step-00000004", "step-00000006"]


def test_the_catalogue_needs_no_torch(tmp_path: Path) -> None:
    save(tmp_path, 4)
    code = (
        "import sys, pathlib\n"
        "sys.argv = ['/bin/shoal']  # the command line, which must do without torch\n"
        "from shoal.checkpoint.catalog import Catalog\n"
        f"catalog = Catalog(pathlib.Path({str(tmp_path)!r}))\n"
        "catalog.clean()\n"
        "print(catalog.records()[0].step)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
