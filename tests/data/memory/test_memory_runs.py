"""Runs on real workers: streams and transforms give the same bits on any number of them, hurt or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[3]

# The same text is a module for ranks and a script for `shoal train`.
PROGRAM = '''
import os, random, signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import IterableDataset

import shoal


class Images(IterableDataset):
    """109 images, or only every `of`th of them from `first` on."""

    def __init__(self, first=0, of=1, changed=False):
        self.first, self.of, self.changed = first, of, changed

    def __iter__(self):
        generator = torch.Generator().manual_seed(4)
        for number in range(109):
            image = torch.randint(0, 256, (1, 6, 6), dtype=torch.uint8, generator=generator)
            if number % self.of == self.first:
                yield image + self.changed, number % 4


def noise(sample, generator):
    image, label = sample
    return image.float() + torch.rand(1, 6, 6, generator=generator) * random.random(), label


def mix_up(batch, generator):
    images, labels = batch
    other = torch.randperm(len(images), generator=generator)
    return 0.9 * images + 0.1 * images[other], labels


def trainer(run_dir, data, **settings):
    stages = [shoal.data.augment.RandomCrop(1), shoal.data.augment.RandomFlip(), noise]
    return shoal.Trainer(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 4)),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-4, momentum=0.9),
        train=shoal.data.transform(data, per_sample=stages, per_batch=mix_up),
        test=shoal.data.transform(Images(), per_sample=shoal.data.augment.ToFloat()),
        **{"global_batch": 30, "grain": 5, "epochs": 2, "seed": 2, "run_dir": run_dir, **settings},
    )
'''


def program() -> Any:
    names: dict[str, Any] = {"__name__": "program"}
    exec(PROGRAM, names)
    return names


def learn(session: Session, run_dir: str, stream: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    made = program()
    own = {name: session.world.rank if value == "rank" else value for name, value in stream.items()}
    return dict(made["trainer"](run_dir, made["Images"](**own), **settings).fit().summary)


def outcome(summary: dict[str, Any]) -> str:
    """The bits of a run that has used every sample once an epoch."""
    coverage = summary["coverage"]
    assert summary["status"] == "completed"
    assert coverage == {"expected": 218, "once": 218, "missed": 0, "repeated": 0}
    return str(summary["params_sha256"])


@pytest.fixture(scope="module")
def alone(_zygote: RankHarness, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bits of the run on one worker."""
    return outcome(_zygote.run(1, learn, str(tmp_path_factory.mktemp("alone") / "run"), {}, {})[0])


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(
    ranks: RankHarness, tmp_path: Path, alone: str, workers: int
) -> None:
    summaries = ranks.run(workers, learn, str(tmp_path / "run"), {}, {"loader.processes": workers - 2})
    assert {outcome(summary) for summary in summaries} == {alone}


def test_transforms_of_batches_have_grains_run_one_by_one(ranks: RankHarness, tmp_path: Path) -> None:
    ranks.run(1, learn, str(tmp_path / "run"), {}, {"epochs": 1})
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    choice = next(event for event in events if event["kind"] == "decision" and event["what"] == "grain")
    assert choice["chosen"] == "5, grain"
    assert choice["why"] == "the data is transformed per batch (mix_up)"
    with pytest.raises(AssertionError, match="passes=merged, but the data is transformed per batch"):
        ranks.run(1, learn, str(tmp_path / "merged"), {}, {"passes": "merged"})


def test_a_run_on_a_stream_goes_on_in_the_middle_of_an_epoch(ranks: RankHarness, tmp_path: Path, alone: str) -> None:
    ranks.run(2, learn, str(tmp_path / "run"), {}, {"epochs": None, "steps": 3})
    with pytest.raises(AssertionError, match="checkpoint was written for other training data"):
        ranks.run(2, learn, str(tmp_path / "run"), {"changed": True}, {})
    summaries = ranks.run(3, learn, str(tmp_path / "run"), {}, {})
    assert {outcome(summary) for summary in summaries} == {alone}


def test_a_stream_that_workers_divide_among_them_is_refused_by_name(ranks: RankHarness, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        ranks.run(2, learn, str(tmp_path / "run"), {"of": 2, "first": "rank"}, {"global_batch": 10})
    told = str(caught.value)
    assert "worker 1" in told
    assert "differs from worker 0" in told
    assert "a digest of the stream, which must give each worker all of them, in one order, or use --once off" in told


def test_a_stream_that_is_not_the_same_for_all_is_accepted_with_once_off(ranks: RankHarness, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"worker 1 .*differs from worker 0"):
        ranks.run(2, learn, str(tmp_path / "run"), {"changed": "rank"}, {})
    summaries = ranks.run(2, learn, str(tmp_path / "run"), {"changed": "rank"}, {"loader.once": "off"})
    assert len({outcome(summary) for summary in summaries}) == 1


def loop(session: Session, run_dir: str) -> tuple[int, list[float]]:
    """How often a stream was read, and its losses: in a loop of one's own that evaluates after each epoch."""
    import torch
    from torch import nn

    import shoal

    class Counted(torch.utils.data.IterableDataset[Any]):
        read = 0

        def __iter__(self) -> Any:
            self.read += 1
            return ((torch.full((3,), float(number % 5)), number % 2) for number in range(20))

    train, test = Counted(), Counted()
    sgd = lambda params: torch.optim.SGD(params, lr=0.1)  # noqa: E731
    run = shoal.prepare(nn.Linear(3, 2), sgd, nn.CrossEntropyLoss(), global_batch=8, run_dir=run_dir)
    losses = []
    for _ in range(3):
        for batch in run.batches(train):
            run.step(batch)
        losses.append(run.evaluate(test)["test_loss"])
    run.finish()
    return train.read + test.read, losses


def test_a_loop_of_ones_own_reads_each_stream_once(ranks: RankHarness, tmp_path: Path) -> None:
    ((reads, losses),) = ranks.run(1, loop, str(tmp_path / "run"))
    assert reads == 2
    assert len(set(losses)) == 3


KILLED_ONCE = """
killed = Path("killed")


def deadly(sample, generator):
    # whoever has read so many, in the second epoch, dies of it
    if deadly.count > 70 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    deadly.count += 1
    return sample


deadly.count = 0
trainer("run", shoal.data.transform(Images(), per_sample=deadly)).fit()
"""


def test_a_worker_killed_in_the_middle_of_a_stream_loses_no_sample(tmp_path: Path, alone: str) -> None:
    (tmp_path / "script.py").write_text(PROGRAM + KILLED_ONCE)
    command = [sys.executable, "-m", "shoal", "train", "script.py", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "killed by signal 9" in summary["faults"][0]["cause"]
    assert outcome(summary) == alone
