"""What is wrong with a run is said before it runs."""

from __future__ import annotations

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
