"""What a user is told before the first step: which module keeps grains apart, and who has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.train.dry_run import plan, print_dry_run
from shoal.train.opening import decide_cutting

pytestmark = pytest.mark.unit


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 4, 2, dropout=0.3, batch_first=True)

    def forward(self, given: Tensor) -> Tensor:
        out: Tensor = self.cells(given)[0]
        return out


def trainer(model: nn.Module, **settings: Any) -> shoal.Trainer:
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(120, 3, 4, generator=generator)
    return shoal.Trainer(
        model=model, loss=nn.MSELoss(), optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        train=(given, given), **{"global_batch": 53, "epochs": 1, "checkpoint": {"every": "never"}, **settings},
    )  # fmt: skip


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3), nn.Dropout(0.2))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2))


def test_the_header_names_the_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = trainer(Recurrent(), run_dir=str(tmp_path / "run")).fit()
    told = capsys.readouterr()
    words = "one to a pass: cells (LSTM) draws within its layers (dropout)"
    assert words in " ".join((told.out + told.err).split())
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert "cells (LSTM)" in next(event["why"] for event in events if event.get("what") == "grain")
    assert result.status == "completed"


def test_dropout_is_no_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer(dropping(), run_dir=str(tmp_path / "run")).fit()
    told = capsys.readouterr()
    assert "several to a pass" in " ".join((told.out + told.err).split())


def test_a_dry_run_says_who_is_idle(capsys: pytest.CaptureFixture[str]) -> None:
    of = trainer(normed(), workers=6, strategy="allreduce")
    spec = of._spec(of.config)
    shown = plan(spec)
    assert shown["shares"].count(0) == 3
    assert shown["idle"].startswith("3 of 6 workers have no sample in a full batch: it has 3 grains of 18 samples")
    print_dry_run(spec, as_json=False)
    assert "--set grain=8 gives all of them some" in " ".join(capsys.readouterr().out.split())
    assert "idle" not in plan(_spec_of(dropping(), workers=6, strategy="allreduce"))


def _spec_of(model: nn.Module, **settings: Any) -> Any:
    of = trainer(model, **settings)
    return of._spec(of.config)


@pytest.mark.parametrize("workers", [1, 2, 6])
def test_the_grain_depends_on_who_was_announced_not_on_who_is_there(workers: int) -> None:
    strategy = "allreduce"
    for model, most, grain in ((normed(), None, 16), (normed(), 2, 32), (Recurrent(), None, 16), (Recurrent(), 16, 4)):
        spec = _spec_of(model, global_batch=64, workers=workers, strategy=strategy, elastic={"max_workers": most})
        assert decide_cutting(spec, spec.config).grain == grain


@pytest.mark.parametrize(
    ("settings", "passes", "draws"),
    [
        ({}, "merged", "sample"),
        ({"passes": "grain"}, "grain", "sample"),
        ({"draws": "grain"}, "grain", "grain"),
        ({"passes": "merged", "draws": "grain"}, "merged", "grain"),
        ({"draws": "sample"}, "merged", "sample"),
    ],
)
def test_passes_and_draws_are_settled_together(settings: dict[str, str], passes: str, draws: str) -> None:
    spec = _spec_of(dropping(), **settings)
    chosen = decide_cutting(spec, spec.config).settings
    assert (chosen["passes"], chosen["draws"]) == (passes, draws)


def test_draws_by_sample_are_refused_where_they_cannot_be() -> None:
    spec = _spec_of(Recurrent(), draws="sample")
    with pytest.raises(shoal.UserError, match=r"draws=sample, but cells \(LSTM\) draws"):
        decide_cutting(spec, spec.config)


def test_on_a_gpu_dropout_keeps_grains() -> None:
    spec = _spec_of(dropping())
    chosen = decide_cutting(spec, spec.config, "cuda:0")
    assert chosen.draws is None
    assert not chosen.merged
    assert chosen.why == "draws are told apart by sample on CPUs only, not on cuda:0"
