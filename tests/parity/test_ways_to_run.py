"""One program, five ways to run it: the same number of workers gives the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.parity, pytest.mark.ranks, pytest.mark.slow]

PROGRAM = """
import shoal, torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5))
generator = torch.Generator().manual_seed(1)
data = torch.randn(203, 12, generator=generator), torch.randint(5, (203,), generator=generator)
optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
settings = dict(global_batch=50, seed=4, clip=shoal.Clip(norm=1.0))
schedule = shoal.schedules.Cosine("2 epochs", warmup="3 steps")
"""
TRAINER = (
    PROGRAM
    + """
trainer = shoal.Trainer(
    model, nn.CrossEntropyLoss(), optimizer, train=data, schedule=schedule, epochs=2, **settings
)
trainer.fit(FIT)
"""
)
LOOP = (
    PROGRAM
    + """
run = shoal.prepare(model, optimizer, nn.CrossEntropyLoss(), schedule=schedule, PREPARE**settings)
for epoch in range(2):
    for batch in run.batches(data):
        run.step(batch)
run.finish()
"""
)


class Ways:
    """Runs scripts below a directory and reads what they leave."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def run(self, name: str, text: str, *command: str) -> dict[str, object]:
        """Run `text` as a script by ``python command script``; its summary."""
        script = self._directory / f"{name}.py"
        run_dir = self._directory / name
        if command:
            line = ["-m", "shoal", "train", str(script), *command, "--run-dir", str(run_dir)]
            text = text.replace("FIT", "").replace("PREPARE", "")
        else:
            line = [str(script)]
            text = text.replace("PREPARE", f"run_dir={str(run_dir)!r}, ")
            text = text.replace("FIT", f"run_dir={str(run_dir)!r}")
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, *line],
            cwd=self._directory,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        summary: dict[str, object] = json.loads((run_dir / "summary.json").read_text())
        assert summary["coverage"] == {"expected": 406, "once": 406, "missed": 0, "repeated": 0}
        return summary


def test_one_worker(tmp_path: Path) -> None:
    ways = Ways(tmp_path)
    summaries = [
        ways.run("python-trainer", TRAINER),
        ways.run("python-loop", LOOP),
        ways.run("shoal-trainer", TRAINER, "--workers", "1"),
    ]
    assert {summary["workers"] for summary in summaries} == {1}
    assert len({summary["params_sha256"] for summary in summaries}) == 1


def test_two_workers(tmp_path: Path) -> None:
    ways = Ways(tmp_path)
    summaries = [
        ways.run("shoal-trainer", TRAINER, "--workers", "2"),
        ways.run("shoal-loop", LOOP, "--workers", "2"),
        ways.run("python-fit", TRAINER.replace("fit(FIT)", "fit(workers=2, FIT)")),
    ]
    assert {summary["workers"] for summary in summaries} == {2}
    assert len({summary["params_sha256"] for summary in summaries}) == 1


def test_fit_on_workers_brings_the_trained_parameters_back(tmp_path: Path) -> None:
    """The model in the calling process has the parameters whose digest is in the summary."""
    check = """
from shoal.train.record import parameters_sha256
import json, pathlib
summary = json.loads((pathlib.Path("python-fit") / "summary.json").read_text())
assert parameters_sha256(model) == summary["params_sha256"], "the parameters did not come back"
"""
    Ways(tmp_path).run("python-fit", TRAINER.replace("fit(FIT)", "fit(workers=2, FIT)") + check)
