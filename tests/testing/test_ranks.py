"""The harness that other tests rely on: results, failures, deadlines and signals of real ranks."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import torch

from shoal.launch.session import Session, current
from shoal.testing.ranks import RankHarness

pytestmark = pytest.mark.ranks
CONSTANT = 41


def test_results_come_back_in_rank_order(ranks: RankHarness) -> None:
    def work(session: Session, offset: int) -> tuple[int, int, int, float]:
        return (
            session.world.rank + offset,
            session.world.size,
            torch.get_num_threads(),
            float(torch.ones(3).sum()),
        )

    assert ranks.run(3, work, 10) == [(10, 3, 1, 3.0), (11, 3, 1, 3.0), (12, 3, 1, 3.0)]


def _plus_one(session: Session) -> int:
    return CONSTANT + 1


def test_a_function_of_the_test_module_is_sent_by_value(ranks: RankHarness) -> None:
    assert ranks.run(1, _plus_one) == [42]


def test_large_results_and_arguments(ranks: RankHarness) -> None:
    big = torch.arange(1_000_000, dtype=torch.float32)
    (doubled,) = ranks.run(1, lambda session, tensor: tensor * 2, big)
    assert torch.equal(doubled, big * 2)


def test_the_session_is_installed_and_the_control_page_shared(ranks: RankHarness) -> None:
    def work(session: Session) -> bool:
        session.control.enter(session.world.rank, 5 + session.world.rank, "forward")
        return current() is session and session.rendezvous is not None

    with ranks.start(2, work) as run:
        assert run.results() == [True, True]
        assert [run.control.progress(rank) for rank in (0, 1)] == [(5, "forward"), (6, "forward")]


def test_draws_are_a_function_of_the_seed(ranks: RankHarness) -> None:
    def work(session: Session) -> tuple[float, float]:
        return float(torch.rand(())), random.random()

    first, second = ranks.run(2, work, seed=3)
    assert first == second == ranks.run(1, work, seed=3)[0]
    assert first != ranks.run(1, work, seed=4)[0]


def test_a_failure_shows_the_tracebacks_and_output_of_the_ranks(ranks: RankHarness) -> None:
    def work(session: Session) -> None:
        print(f"I am {session.world.rank}")
        if session.world.rank == 1:
            raise ValueError("wrong here")

    with pytest.raises(AssertionError, match="wrong here") as caught:
        ranks.run(2, work)
    assert "I am 1" in str(caught.value)
    assert "rank 0 ended with 0" in str(caught.value)


def test_ranks_are_killed_at_the_deadline(ranks: RankHarness) -> None:
    begin = time.monotonic()
    with pytest.raises(AssertionError, match="not all ranks ended"):
        ranks.run(2, lambda session: signal.pause(), deadline_s=0.3)
    assert time.monotonic() - begin < 50  # and not the 60 s that it has otherwise


def test_ranks_can_be_hurt_while_they_run(ranks: RankHarness) -> None:
    def work(session: Session) -> str:
        while not session.control.aborted:
            os.sched_yield()
        return "survived"

    with ranks.start(2, work) as run:
        run.signal(1, signal.SIGKILL)
        assert run.wait_for(1).code == -signal.SIGKILL
        run.control.abort()
        assert run.wait()[0].outcome() == (True, "survived")
