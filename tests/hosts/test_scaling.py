"""`shoal scale`: what it asks of a run, how long it waits, and what it says of runs that cannot be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import main
from shoal.core.config import Config
from shoal.core.errors import ShoalError, UserError
from shoal.core.world import Member, View
from shoal.elastic.keys import RunKeys, write_key_file
from shoal.elastic.messages import Ask, Request, Scale
from shoal.launch import scaling
from shoal.launch.rundir import RunDir
from shoal.launch.scaling import Scaled, key_file, settle

pytestmark = pytest.mark.unit


def view(number: int, size: int) -> View:
    return View(number, tuple(Member("worker", rank, "here", 100 + rank, f"k{rank}") for rank in range(size)))


class Coordinator:
    """Answers with one view after the other, the last one for ever."""

    def __init__(self, *views: View) -> None:
        self.views = list(views)
        self.asked: list[Request] = []

    def request(self, operation: Request, timeout_s: float) -> Any:
        self.asked.append(operation)
        if not self.views:
            raise ShoalError("no answer")
        shown = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        return {"view": shown.to_json(), "awaited": ["worker 1 on there"]}


def test_it_asks_once_and_waits_until_the_view_has_the_number() -> None:
    run = Coordinator(view(1, 2), view(1, 2), view(2, 3))
    assert settle(run, view(1, 2), 3, settle_s=30) == Scaled(view(1, 2), view(2, 3))
    assert run.asked == [Scale(3), Ask(), Ask()]


def test_a_run_that_does_not_get_there_is_described_as_it_stands() -> None:
    outcome = settle(Coordinator(view(1, 2)), view(1, 2), 3, settle_s=0)
    assert outcome == Scaled(view(1, 2), view(1, 2), ("worker 1 on there",))


def test_a_run_that_ends_meanwhile_is_said_to_have_ended() -> None:
    with pytest.raises(UserError, match="has ended meanwhile"):
        settle(Coordinator(), view(1, 2), 3, settle_s=30)


def made(path: Path, **settings: Any) -> Path:
    RunDir(path).create(Config(global_batch=1, epochs=1, **settings), None)
    return path


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["scale", *words]) == 2
    return capsys.readouterr().err


def test_no_such_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no run directory" in refusal(capsys, str(tmp_path / "nowhere"), "--workers", "2")
    assert "is no run directory" in refusal(capsys, str(tmp_path), "--workers", "2")


def test_too_few_and_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(made(tmp_path / "run", elastic={"max_workers": 3}))
    assert "--workers 0: at least 1 is needed" in refusal(capsys, run, "--workers", "0")
    assert "--workers 4: this run was started with elastic.max_workers=3" in refusal(capsys, run, "--workers", "4")


def test_a_run_that_was_begun_for_one_worker_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(made(tmp_path / "run"))
    assert "go on with it by the same command with --max-workers 2" in refusal(capsys, run, "--workers", "2")


def test_a_run_that_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path / "run", workers=2)
    assert "is not running now" in refusal(capsys, str(run), "-w", "2")
    # killed before it could take its key away: nobody listens there any more
    write_key_file(key_file(run), RunKeys.make().client(), "tcp://127.0.0.1:9")
    monkeypatch.setattr(scaling, "REACH_S", 0.3)
    assert "is not running now" in refusal(capsys, str(run), "-w", "2")


def test_what_happened_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for outcome, status, words in (
        (Scaled(view(1, 2), view(2, 3)), 0, "2 workers before, 3 now: worker 0 on here, worker 1 on here, worker 2"),
        (Scaled(view(1, 3), view(1, 3)), 0, "the run has 3 workers already"),
        (
            Scaled(view(1, 1), view(1, 1), ("worker 1 on there",)),
            1,
            "the run has 1 by now (worker 0 on here), and",
        ),
    ):
        monkeypatch.setattr(scaling, "scale", lambda run_dir, workers, outcome=outcome: outcome)
        assert main(["scale", "run", "--workers", "3"]) == status
        assert words in capsys.readouterr().out
