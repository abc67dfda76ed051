"""Rounds of local steps broken on purpose: samples that are counted and have not shaped the model must be seen in it.

With one plain step a round, two trainers are synchronous training: any step that is missing shows. A trainer dies in a
round; then the other, whose own step is done, does the step of the dead one after it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from e2e import Run
from self_hurt import Trials, parameters, script
from torch import nn

from shoal.core.order import epoch_order

pytestmark = [pytest.mark.ranks, pytest.mark.mutation]

SAMPLES, BATCH, EPOCHS, FAULT_AT = 237, 20, 3, 14
SINGLE_STEPS = ("--strategy", "incremental", "--set", "incremental.h=1", "--set", "incremental.rho=1.0")
WORDS = ("--workers", "2", "--max-restarts", "0", *SINGLE_STEPS)
# worker 1 dies in its part of a step once worker 0 is at its own
DIES = (
    f"step() == {FAULT_AT} and size() == 2 and "
    "((MARKS / 'other').touch() if rank() == 0 else until((MARKS / 'other').exists) or die())"
)

MUTATIONS = {
    "a survivor's step is undone and counts all the same": """
from shoal.strategies.incremental_replica import IncrementalReplica
right = IncrementalReplica._inherit
def inherit(self, words):
    right(self, words)
    if self.progress.done:
        self.common.restore()
IncrementalReplica._inherit = inherit
""",
    "the task of the dead is counted and not done": """
from shoal.strategies.incremental_replica import IncrementalReplica
right = IncrementalReplica._local_step
def local_step(self, *given):
    before = [parameter.detach().clone() for parameter in self.program.model.parameters()]
    inherited = bool(self.progress.done)
    right(self, *given)
    if inherited:
        for parameter, value in zip(self.program.model.parameters(), before):
            parameter.data.copy_(value)
IncrementalReplica._local_step = local_step
""",
    "an average leaves a trainer out": """
from shoal.strategies.averaging import Averager
right = Averager.average
def average(self, share, compute_s):
    left_out = current().rank == 1 and once("left out")
    return right(self, 0.0 if left_out else share, compute_s)
Averager.average = average
""",
    "an average is not weighted by samples": """
from shoal.strategies.averaging import Averager
right = Averager.average
Averager.average = lambda self, share, compute_s: right(self, 1 / current().size, compute_s)
""",
}


def trained(mutation: str = "") -> str:
    """The program, with the initial weights and the optimizer of `in_plain_pytorch`."""
    text = script(forward=DIES).replace(", momentum=0.9", "").replace("model=Net()", "model=seeded()")
    seeded = "def seeded():\n    torch.manual_seed(20)\n    return Net()\n"
    return text.replace("class Net", f"{mutation}\n{seeded}\nclass Net")


def in_plain_pytorch() -> torch.Tensor:
    """What the run must give: one step a batch, but for that of the fault, whose halves are done one by one."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 10, generator=generator)
    targets = inputs[:, :4].argmax(1)
    torch.manual_seed(20)
    net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.tensor(np.array(epoch_order(0, epoch, SAMPLES)))
        for batch in order.split(BATCH):
            for rows in batch.split(BATCH // 2) if step == FAULT_AT else (batch,):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs[rows]), targets[rows]).backward()
                optimizer.step()
            step += 1
    state = net.state_dict()
    return torch.cat([state[name].double().flatten() for name in sorted(state)])


def assert_every_sample_counts(run: Run) -> None:
    """It has completed, and by its own record every sample has shaped the model once."""
    summary, samples = run.summary(), SAMPLES * EPOCHS
    assert summary["status"] == "completed"
    assert summary["coverage"] == {"expected": samples, "once": samples, "missed": 0, "repeated": 0}
    assert len(summary["faults"]) == 1, summary["faults"]


def assert_every_sample_is_in_the_weights(run: Run) -> None:
    expected = in_plain_pytorch()
    apart = float((parameters(run) - expected).norm() / expected.norm())
    assert apart <= 5e-6, f"the parameters differ by {apart:.1e}"


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_samples_that_count_and_are_not_in_the_weights_are_seen(trials: Trials, mutation: str) -> None:
    done, run = trials.train(trained(), *WORDS, run="right")
    assert done.status == 0, done.err
    assert_every_sample_counts(run)
    assert_every_sample_is_in_the_weights(run)
    done, run = trials.train(trained(MUTATIONS[mutation]), *WORDS)
    assert done.status == 0, done.err
    assert_every_sample_counts(run)
    with pytest.raises(AssertionError, match="the parameters differ"):
        assert_every_sample_is_in_the_weights(run)
