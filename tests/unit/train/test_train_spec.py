"""What is wrong with a run is said before it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from shoal.core.config import resolve
from shoal.core.errors import ConfigError
from shoal.data.source import open_source
from shoal.strategies.objective import make_objective
from shoal.strategies.program import Program
from shoal.strategies.select import choose_strategy
from shoal.train.opening import decide_cutting
from shoal.train.spec import RunSpec

pytestmark = pytest.mark.unit


def _spec(strategy: str = "single", **settings: Any) -> RunSpec:
    config = resolve(("Trainer(...)", {"global_batch": 4, "epochs": 1, **settings}))
    program = Program(nn.Linear(2, 1), make_objective(nn.MSELoss()), lambda params: torch.optim.SGD(params, lr=0.1))
    data = open_source((torch.zeros(10, 2), torch.zeros(10, 1)), "train")
    return RunSpec(config, program, choose_strategy(strategy, config.workers), data)


def test_a_batch_may_be_the_whole_data_set_but_not_more() -> None:
    assert _spec(global_batch=10).config.global_batch == 10
    with pytest.raises(ConfigError, match="global_batch=11 is larger than the data set, which has 10 samples"):
        _spec(global_batch=11)


def test_an_unknown_initialisation_is_refused() -> None:
    with pytest.raises(ConfigError, match="init='xavier' is unknown"):
        _spec(init="xavier")


def test_single_runs_on_one_worker_only() -> None:
    with pytest.raises(ConfigError, match="at most 1 worker, but workers=2: use --strategy allreduce"):
        _spec(workers=2)
    assert _spec("allreduce", workers=2).config.workers == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"comm": {"codec": "int9"}}, r"comm\.codec='int9' is not a codec: did you mean 'int8'"),
        ({"comm": {"codec": "topk:2"}}, r"comm\.codec=topk:2 has a wrong parameter"),
        ({"hybrid": {"outer": "foo"}}, r"hybrid\.outer='foo' cannot join teams: known: allreduce, async"),
        ({"server": {"consistency": "ssp"}}, r"consistency 'ssp' cannot be read"),
        ({"server": {"placement": "odd"}}, r"unknown placement 'odd'.*even"),
        (
            {"checkpoint": {"monitor": "val_loss"}},
            r"checkpoint\.monitor='val_loss' .* nothing measures it: .*'test_loss'",
        ),
    ],
)
def test_what_this_run_will_never_read_is_checked_too(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _spec(**settings)


@pytest.mark.parametrize("strategy", ["incremental", "async"])
def test_statistics_over_all_workers_need_workers_in_step(strategy: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"statistics=global, but with strategy={strategy} .*use --strategy allreduce"
    ):
        _spec(strategy, workers=2, statistics="global")
    for other in ("allreduce", "parameter-server"):
        assert _spec(other, workers=2, statistics="global").config.statistics == "global"


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"passes": "grain"}])
def test_statistics_over_all_workers_need_one_pass(settings: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"statistics=global and (accumulate=2|passes=grain): .*(one pass|one by one)"
    ):
        _spec(statistics="global", **settings)


class _Noise(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + torch.randn_like(given)


def test_statistics_over_all_workers_are_refused_where_something_else_looks_at_the_batch() -> None:
    spec = _spec(statistics="global")
    assert decide_cutting(spec, spec.config).merged
    program = replace(spec.program, model=nn.Sequential(nn.Linear(2, 1), _Noise()))
    with pytest.raises(ConfigError, match=r"statistics=global, .*draws.*Use statistics=grain"):
        decide_cutting(replace(spec, program=program), spec.config)
