"""What an evaluator does with the checkpoints that it finds: no processes."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from shoal.checkpoint.catalog import Catalog, Entry
from shoal.checkpoint.format import Checkpoint, write
from shoal.checkpoint.model_state import dump_model
from shoal.comm.control import ControlPage
from shoal.core.config import resolve
from shoal.core.cursor import Cursor
from shoal.core.events import Evaluated, RunStarted
from shoal.core.state import Piece, ShardedState
from shoal.core.world import World
from shoal.data.source import open_source
from shoal.launch.rundir import RunDir
from shoal.launch.session import Session
from shoal.strategies.objective import make_objective
from shoal.strategies.program import Program
from shoal.strategies.single import Single
from shoal.train import following
from shoal.train.exporting import Best, export, exported
from shoal.train.following import Follower, evaluated_elsewhere
from shoal.train.hearing import EventTail
from shoal.train.metrics import with_defaults
from shoal.train.spec import RunSpec

pytestmark = pytest.mark.unit


class Tied(nn.Module):
    """Two names for one parameter, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.first(inputs)))


class Scene:
    """A run directory as workers leave it, and evaluators that look at it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.run_dir = RunDir(path)
        self.config = resolve(
            ("test", {"global_batch": 8, "steps": 8, "evaluator": {"enabled": True, "every_s": 0}, **settings})
        )
        settled = self.config.model_copy(update={"layout": "as_given"})
        self.run_dir.create(settled, None)
        self.run_dir.keep(settled, None)
        generator = torch.Generator().manual_seed(3)
        self.test = torch.randn(21, 4, generator=generator), torch.randint(0, 4, (21,), generator=generator)
        self.reports: list[dict[str, Any]] = []

    def save(self, step: int) -> Path:
        """A checkpoint whose parameters depend on the step."""
        tensors, aliases = dump_model(self.model(step))
        state = ShardedState({name: Piece.whole(t) for name, t in tensors.items()}, {"aliases": aliases})
        return write(self.run_dir.checkpoints, f"step-{step:08d}", [state], Cursor(0, step, step, 8 * step), {})

    def model(self, step: int) -> nn.Module:
        torch.manual_seed(step)
        return Tied()

    @torch.no_grad()
    def loss(self, step: int) -> float:
        inputs, target = self.test
        return float(nn.functional.cross_entropy(self.model(step).eval()(inputs), target))

    def follow(self, run_over: Callable[[float], bool] = lambda wait_s: True) -> None:
        """An evaluator, until the run is over."""
        session = Session(
            World(),
            ControlPage(),
            role="evaluator",
            follows=(str(self.run_dir.path),),
            run_over=run_over,
            report=self.reports.append,
        )
        loss = nn.CrossEntropyLoss()
        program = Program(
            self.model(0),
            make_objective(loss),
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            with_defaults(loss, None),
        )
        source = open_source(self.test, "test")
        follower = Follower(RunSpec(self.config, program, Single(), source, source), session, self.run_dir)
        try:
            follower.until_over()
        finally:
            follower.close()
            session.control.close()

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self.run_dir.events_file.read_text().splitlines() if self.run_dir.events_file.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def steps(self) -> list[int]:
        """Those that an evaluator has evaluated, in order."""
        return [event["cursor"]["step"] for event in self.events("eval") if event["by"] == "evaluator"]

    def best(self) -> Best:
        best = exported(self.run_dir.path)
        assert best is not None
        return best


def started(step: int) -> RunStarted:
    return RunStarted("single", "none", 1, Cursor(0, step, step, step * 8), 8, 3, 21)


def test_the_newest_is_evaluated_exactly(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run", eval_batch=4)
    scene.save(2)
    scene.save(4)
    scene.follow()
    [event] = scene.events("eval")
    assert event["cursor"]["step"] == 4
    assert event["values"]["test_loss"] == pytest.approx(scene.loss(4), rel=1e-6)
    assert set(event["values"]) == {"test_loss", "test_accuracy"}
    assert scene.reports[0] == {"type": "alive"}


def test_a_checkpoint_that_is_removed_just_after_it_was_found_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path / "run")
    scene.save(2)
    found = Catalog.entries

    def entries(catalog: Catalog) -> list[Entry]:
        there = found(catalog)
        if [entry.step for entry in there] == [2]:
            scene.save(4)
            shutil.rmtree(there[0].path)  # as a writer does that keeps one
        return there

    monkeypatch.setattr(Catalog, "entries", entries)
    scene.follow()
    assert scene.steps() == [4]
    assert scene.events("warning") == []


def test_without_a_checkpoint_there_is_nothing_to_do(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run")
    scene.follow()
    assert scene.steps() == []
    assert exported(scene.run_dir.path) is None


def test_at_most_every_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints come every 20 s, evaluating one takes 7 s: one a minute is looked at, and the last one at once."""
    scene = Scene(tmp_path / "run", evaluator={"enabled": True, "every_s": 60})
    now_s = 1000.0
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now_s, perf_counter=lambda: now_s))
    begun: list[tuple[int, float]] = []
    evaluate = Follower._evaluate

    def slowly(self: Follower, checkpoint: Checkpoint) -> Evaluated:
        nonlocal now_s
        begun.append((checkpoint.cursor.step, now_s))
        now_s += 7
        return evaluate(self, checkpoint)

    monkeypatch.setattr(Follower, "_evaluate", slowly)
    scene.save(1)

    def run_over(wait_s: float) -> bool:
        """The run ends after 200 s, and the evaluator is told at once."""
        nonlocal now_s
        until_s = min(now_s + wait_s, 1200.0)
        for step in range(1, 11):
            if now_s < 1000 + 20 * step <= until_s:
                scene.save(step + 1)
        now_s = max(now_s, until_s)
        return now_s >= 1200

    scene.follow(run_over)
    assert [step for step, _ in begun] == [1, 4, 7, 10, 11], "the newest each time, those between are left out"
    times = [at_s for _, at_s in begun]
    assert [later - earlier for earlier, later in pairwise(times[:-1])] == pytest.approx([60.0] * 3)
    assert times[-1] == pytest.approx(1200.0), "what is left when the run is over does not wait"
    assert scene.steps() == [1, 4, 7, 10, 11]


def test_the_best_one_stays(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run")
    looks = iter([1, 2, 3, 4])

    def run_over(wait_s: float) -> bool:
        step = next(looks, None)
        if step is not None:
            scene.save(step)
        return step is None

    scene.follow(run_over)
    assert scene.steps() == [1, 2, 3, 4]
    best = min((1, 2, 3, 4), key=scene.loss)
    assert scene.best().step == best
    assert scene.best().samples == 8 * best
    assert scene.best().value == pytest.approx(scene.loss(best), rel=1e-6)
    model = scene.model(0)
    model.load_state_dict(load_file(scene.run_dir.path / "best" / "model.safetensors"))  # strict: all names are there
    for name, tensor in scene.model(best).state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


@pytest.mark.parametrize("file", ["state-00000.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_passed_over_and_told_once(tmp_path: Path, file: str) -> None:
    scene = Scene(tmp_path / "run")
    scene.save(2)
    damaged = scene.save(4) / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    looks = iter(range(3))
    scene.follow(lambda wait_s: next(looks, None) is None)
    assert scene.steps() == [2]
    [warning] = scene.events("warning")
    assert "passes over checkpoint step-00000004" in warning["message"]
    scene.save(4)  # written again, by a run that came to that step again
    scene.follow()
    assert scene.steps() == [2, 4]


def test_a_second_one_goes_on_where_the_first_was(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run")
    scene.save(2)
    scene.follow()
    scene.follow()
    assert scene.steps() == [2]
    first = scene.best()
    scene.save(4)
    scene.follow()
    assert scene.steps() == [2, 4]
    better = 4 if scene.loss(4) < scene.loss(2) else 2
    assert scene.best().step == better
    assert (scene.best() == first) == (better == 2)


def test_what_a_killed_one_had_begun_is_removed(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run")
    scene.save(2)
    (scene.run_dir.path / ".tmp-best-12345").mkdir()
    scene.follow()
    assert not list(scene.run_dir.path.glob(".tmp-*"))


def test_what_the_workers_have_measured_is_not_measured_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run")
    scene.save(4)
    scene.run_dir.append(Evaluated(Cursor(0, 4, 4, 32), {"test_loss": 0.25, "test_accuracy": 1.0}, 0.1))
    scene.follow()
    assert scene.steps() == []
    assert scene.best().step == 4
    assert scene.best().value == 0.25


def test_a_run_that_goes_on_is_measured_anew(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run")
    scene.save(2)
    scene.save(4)
    scene.follow()
    scene.run_dir.append(started(2))
    scene.follow()
    assert scene.steps() == [4, 4]


def test_what_was_best_by_another_value_counts_no_more(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run")
    scene.save(2)
    scene.follow()
    other = Scene(tmp_path / "run", checkpoint={"monitor": "test_accuracy", "mode": "max"})
    other.save(4)
    other.follow()
    assert (other.best().step, other.best().monitor) == (4, "test_accuracy")


@pytest.mark.parametrize("launched", [True, False])
def test_a_process_that_the_user_started_evaluates_itself(launched: bool) -> None:
    page = ControlPage()
    session = Session(World(), page, launched=launched)
    config = resolve(("test", {"global_batch": 8, "steps": 8, "evaluator": {"enabled": True}}))
    assert evaluated_elsewhere(config, session) is launched
    page.close()


def test_which_is_better() -> None:
    def best(value: float, mode: Any = "min") -> Best:
        return Best(1, 0, 8, "test_loss", mode, {"test_loss": value})

    assert best(1.0).beats(None)
    assert best(1.0).beats(best(2.0))
    assert not best(2.0).beats(best(1.0))
    assert not best(1.0).beats(best(1.0))
    assert best(2.0, "max").beats(best(1.0, "max"))
    assert best(1.0, "max").beats(best(0.5))  # judged the other way round: it does not count
    assert not best(math.nan).beats(None)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"step": 1}'])
def test_what_cannot_be_read_is_no_best(tmp_path: Path, text: str) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_text(text)
    assert exported(tmp_path) is None


def test_a_disk_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.checkpoint.format import read

    scene = Scene(tmp_path / "run")
    checkpoint = read(scene.save(2))
    export(tmp_path, checkpoint, Best(2, 0, 16, "test_loss", "min", {"test_loss": 1.0}))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shoal.train.exporting.write_file", full)
    with pytest.raises(OSError, match="No space"):
        export(tmp_path, checkpoint, Best(4, 0, 32, "test_loss", "min", {"test_loss": 0.5}))
    left = exported(tmp_path)
    assert left is not None
    assert left.step == 2
    assert not list(tmp_path.glob(".tmp-*"))


def test_events_are_read_once_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    tail = EventTail(file)
    assert tail.new() == []
    file.write_text('{"kind":"step","loss":1}\n{"kind":"eval","n":1}\nnonsense "eval"\n{"kind":"eval"')
    assert tail.new() == [{"kind": "eval", "n": 1}]
    with file.open("a") as more:
        more.write(',"n":2}\n{"kind":"run_started"}\n')
    later = EventTail(file, from_end=True)
    assert tail.new() == [{"kind": "eval", "n": 2}, {"kind": "run_started"}]
    assert tail.new() == []
    assert later.new() == []
