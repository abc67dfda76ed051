"""A checkpoint that is no longer what was written: noticed, named, and the one before is used."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import Run, Shoal
from e2e_script import SCRIPT

from shoal.checkpoint.manifest import _canonical, _checksum

pytestmark = pytest.mark.ranks

WORDS = ("--workers", "2", "--run-dir", "run", "--set", "checkpoint.every=5 steps")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    draw = random.Random(path.name)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture
def stopped(shoal_here: Shoal) -> Shoal:
    """A run that was interrupted after 17 steps, with checkpoints at 15 and 17; `whole` is the same, undisturbed."""
    shoal_here.write(SCRIPT)
    assert shoal_here.train("--workers", "2", "--run-dir", "whole").status == 0
    assert shoal_here.train(*WORDS, "--", "--signal", "16").status == 130
    assert shoal_here.run.names() == ["step-00000012", "step-00000015", "step-00000017"][-len(shoal_here.run.names()) :]
    return shoal_here


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("state-00000.safetensors", flip_a_bit, "is damaged: its checksum differs"),
        ("state-00000.safetensors", cut_short, r"is truncated: \d+ of \d+ bytes"),
        ("state-00000.safetensors", empty, "is truncated: 0 of"),
        ("state-00000.safetensors", remove, "is missing"),
        ("manifest.json", flip_a_bit, "manifest"),
        ("manifest.json", cut_short, "manifest"),
        ("manifest.json", remove, "manifest"),
    ],
)
def test_the_one_before_is_used(stopped: Shoal, file: str, damage: Callable[[Path], None], said: str) -> None:
    damage(stopped.run.checkpoints / "step-00000017" / file)
    done = stopped.train(*WORDS)
    assert done.status == 0, done
    warning = rf"checkpoint step-00000017 is passed over: .*/step-00000017/{re.escape(file)} .*"
    assert re.search(rf"warning: {warning}", done.out), done.out
    assert re.search(said, done.out)
    assert "going on from step 15:" in done.out
    (event,) = stopped.run.events("warning")
    assert re.fullmatch(warning, event["message"])
    assert stopped.run.events("run_started")[-1]["resumed_from"].endswith("step-00000015")
    assert stopped.run.outcome() == Run(stopped.directory / "whole").outcome()


def test_the_damaged_one_is_replaced(stopped: Shoal) -> None:
    """The run comes to the same step again and saves there: what is damaged does not stay."""
    cut_short(stopped.run.checkpoints / "step-00000017" / "manifest.json")
    done = stopped.train(*WORDS, "--", "--signal", "16")
    assert done.status == 130
    done = stopped.train(*WORDS)
    assert "warning" not in done.out
    assert stopped.run.outcome() == Run(stopped.directory / "whole").outcome()


def test_all_of_them_damaged(stopped: Shoal) -> None:
    for path in stopped.run.checkpoints.rglob("*.safetensors"):
        cut_short(path)
    before = sorted(path.stat().st_mtime_ns for path in stopped.run.checkpoints.rglob("*"))
    message = stopped.train(*WORDS).message()
    assert message.startswith(f"every checkpoint in {stopped.run.checkpoints} is damaged:\n")
    for name in stopped.run.names():
        assert re.search(rf"{name}/state-00000\.safetensors is truncated: \d+ of \d+ bytes", message)
    assert message.endswith("Choose another --run-dir to start anew, or delete that directory to start this run again.")
    assert sorted(path.stat().st_mtime_ns for path in stopped.run.checkpoints.rglob("*")) == before
    # which is what one can do
    shutil.rmtree(stopped.run.checkpoints)
    assert stopped.train(*WORDS).status == 0
    assert stopped.run.outcome() == Run(stopped.directory / "whole").outcome()


def test_a_position_that_no_run_can_have(stopped: Shoal) -> None:
    """Its checksum is right: somebody has edited it, or written it with another program."""
    path = stopped.run.checkpoints / "step-00000017" / "manifest.json"
    document = json.loads(path.read_bytes())
    document.pop("checksum")
    document["cursor"]["batch"] = 4711
    path.write_bytes(_canonical({**document, "checksum": _checksum(document)}))
    message = stopped.train(*WORDS).message()
    assert "the checkpoint of step 17 is whole, but makes no sense" in message
    assert "it is at batch 4711 of an epoch that has 12" in message
    shutil.rmtree(path.parent)  # as the message says
    assert stopped.train(*WORDS).status == 0
    assert stopped.run.outcome() == Run(stopped.directory / "whole").outcome()
