"""Recovery broken on purpose: each fault in our own code must be seen in what the run leaves behind."""

from __future__ import annotations

import pytest
from e2e import Done, Run
from self_hurt import Trials, assert_same, script

pytestmark = [pytest.mark.ranks, pytest.mark.mutation]

DIES = "rank() == 1 and step() == 14 and die()"
NORM = "nn.BatchNorm1d(16),"
DIFFER, COVERAGE = "the parameters differ", "the coverage is"
# by the run itself, at the next step at which workers compare; or in what it leaves, where it ends before that
NOTICED = f"holds other parameters or running statistics|{DIFFER}"

MUTATIONS = {
    "a rollback is skipped": (
        """
from shoal.strategies.allreduce import AllReduce
AllReduce.discard = lambda self, replica: None
""",
        NOTICED,
    ),
    "a sample is handed to two workers": (
        """
import shoal.core.cursor as cursor
right = cursor.shares
def shares(count, weights):
    return tuple(range(max(0, r.start - (rank == 1)), r.stop) for rank, r in enumerate(right(count, weights)))
cursor.shares = shares
""",
        COVERAGE,
    ),
    "the step under way is taken for done": (
        """
from shoal.train.run import Run
right = Run._move_on
def move_on(self, broken):
    right(self, broken)
    if broken:
        self.ledger.cursor = self._batches.after(self.cursor)
        self._new_feed()
Run._move_on = move_on
""",
        COVERAGE,
    ),
    "the samples of the dead are forgotten": (
        """
from shoal.train.saving import CoverageRecord
CoverageRecord.commit = lambda self, own, spans, order, readable: self._epoch.commit(own)
""",
        COVERAGE,
    ),
    "a newcomer has no moments": (
        """
import shoal.strategies.replica as replica
replica.load_optimizer = lambda *given: None
""",
        NOTICED,
    ),
    "a newcomer keeps its own weights": (
        """
import shoal.strategies.replica as replica
replica.load_model = lambda *given: None
""",
        NOTICED,
    ),
    "a broken step is applied all the same": (
        """
from shoal.strategies.allreduce import AllReduce
def discard(self, replica):
    for _, parameter in replica.parameters:
        parameter.grad = torch.ones_like(parameter)
    replica.optimizer.step()
    replica.discard()
AllReduce.discard = discard
""",
        DIFFER,
    ),
}


def assert_lawful(done: Done, run: Run, calm: Run) -> None:
    """Nobody has noticed anything, and there was nothing to notice."""
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_fault_in_recovery_is_seen(trials: Trials, mutation: str) -> None:
    text, words = MUTATIONS[mutation]
    # slowly enough that the newcomer takes part in most of what is left
    hurt = script(norm=NORM, forward=f"{DIES}; step() > 14 and time.sleep(0.01)", epochs="4")
    calm = trials.calm(script(norm=NORM, epochs="4"), "--workers", "3")
    done, run = trials.train(hurt, "--workers", "3", run="right")
    assert_lawful(done, run, calm)
    done, run = trials.train(hurt.replace("class Net", f"{text}\n\nclass Net"), "--workers", "3")
    with pytest.raises(AssertionError, match=words):
        assert_lawful(done, run, calm)
