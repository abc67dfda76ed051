"""Several runs of one script at the same time: where they can be, and what they then give up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.comm.control import ControlPage
from shoal.core.config import HybridSettings
from shoal.core.errors import UserError
from shoal.core.world import World
from shoal.launch.session import Session
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.base import Strategy
from shoal.strategies.hybrid import compose
from shoal.strategies.incremental import Incremental
from shoal.strategies.parameter_server import Asynchronous, ParameterServer
from shoal.strategies.single import Single
from shoal.train.beside import begin_beside

pytestmark = pytest.mark.unit


@pytest.fixture
def session() -> Iterator[Session]:
    control = ControlPage()
    yield Session(World(), control)
    control.close()


LONELY = [Incremental(), ParameterServer(), Asynchronous(), compose(HybridSettings())]
SOCIABLE = [Single(), AllReduce(), compose(HybridSettings(outer="allreduce"))]


@pytest.mark.parametrize("strategy", SOCIABLE, ids=["single", "allreduce", "two levels"])
def test_runs_that_need_nothing_of_their_own_are_open_together(session: Session, strategy: Strategy[Any]) -> None:
    with contextlib.ExitStack() as closing:
        first = begin_beside(session, strategy, closing)
        assert not first.beside
        second = begin_beside(session, strategy, closing)
        assert (first.beside, second.beside) == (True, True), "a loss ends both"
    assert session.open_runs == []
    with contextlib.ExitStack() as closing:
        assert not begin_beside(session, strategy, closing).beside


@pytest.mark.parametrize("strategy", LONELY, ids=["incremental", "servers", "async", "hybrid"])
def test_others_are_open_one_after_the_other(session: Session, strategy: Strategy[Any]) -> None:
    for first, second in ((strategy, strategy), (strategy, AllReduce()), (AllReduce(), strategy)):
        with contextlib.ExitStack() as closing:
            begin_beside(session, first, closing)
            with pytest.raises(UserError, match=rf"strategy={strategy.name} trains one run at a time.*finish\(\)"):
                begin_beside(session, second, closing)
            assert len(session.open_runs) == 1
        with contextlib.ExitStack() as closing:
            begin_beside(session, second, closing)
