"""Loops of the user's own: workers die anywhere in them and new ones catch up, by what the others have behind them."""

from __future__ import annotations

import pytest
from self_hurt import HEAD, Trials, assert_same

pytestmark = pytest.mark.ranks

OWN_LOOP = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        if self.training:
            {forward}
        else:
            {evaluation}
        return self.body(x)

run = shoal.prepare(
    Net(), lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), nn.CrossEntropyLoss(),
    global_batch=20, grain=5, eval_batch=8,
)
train, test = data(97, 1), data(61, 2)
seen = []
for epoch in range(6):
{loop}
run.finish()
if rank() == 0:
    Path("seen").write_text("\\n".join(map(repr, seen)))
"""
)

AT_EPOCH_ENDS = """
    for batch in run.batches(train):
        run.step(batch)
    seen.append(run.evaluate(test))
    if epoch % 2:
        run.save()
"""
BEFORE_STEPS = """
    for batch in run.batches(train):
        seen.append(run.evaluate(test))
        run.step(batch)
"""
WORDS = ("--workers", "3")


def own_loop(loop: str, forward: str = "pass", evaluation: str = "pass") -> str:
    return OWN_LOOP.format(loop=loop.strip("\n"), forward=forward, evaluation=evaluation)


@pytest.mark.parametrize("loop", [AT_EPOCH_ENDS, BEFORE_STEPS], ids=["at epoch ends", "before steps"])
@pytest.mark.parametrize(
    ("forward", "evaluation"),
    [
        ("rank() == {victim} and step() == 12 and die()", "pass"),
        ("rank() == {victim} and step() == 14 and die()", "pass"),  # the last of an epoch
        ("pass", "rank() == {victim} and step() >= 15 and die()"),
    ],
    ids=["in a step", "in the last step of an epoch", "in an evaluation"],
)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_dies_in_a_loop(trials: Trials, loop: str, victim: int, forward: str, evaluation: str) -> None:
    calm = trials.calm(own_loop(loop), *WORDS)
    seen = (trials.shoal.directory / "seen").read_text().splitlines()
    hurt = own_loop(loop, forward.format(victim=victim), evaluation.format(victim=victim))
    done, run = trials.train(hurt, *WORDS)
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert len(run.summary()["faults"]) == 1, run.summary()["faults"]
    if victim != 0 and loop is AT_EPOCH_ENDS:  # the first worker has seen it all
        assert (trials.shoal.directory / "seen").read_text().splitlines() == seen


TWO_FITS = (
    HEAD
    + """
def loss(model, batch):
    inputs, target = batch
    {hurt}
    return nn.functional.cross_entropy(model(inputs), target)

def fit(count, **settings):
    model = nn.Linear(10, 4)
    trainer = shoal.Trainer(
        model=model, loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), train=data(count, 1),
        global_batch=20, epochs=3, **settings,
    )
    trainer.fit()
    return model

first = fit(97)
second = fit(117)
if rank() == 0:
    Path("norms").write_text(f"{{first.weight.norm().item():.6f}} {{second.weight.norm().item():.6f}}")
"""
)


def test_a_newcomer_passes_over_a_finished_fit(trials: Trials) -> None:
    trials.calm(TWO_FITS.format(hurt="pass"), "--workers", "2")
    norms = (trials.shoal.directory / "norms").read_text()
    hurt = "current().fits == 2 and step() == 4 and rank() == 1 and die()"
    done, run = trials.train(TWO_FITS.format(hurt=hurt), "--workers", "2")
    assert done.status == 0, done.err
    assert (trials.shoal.directory / "norms").read_text() == norms
    assert run.summary()["coverage"]["missed"] == 0


@pytest.mark.parametrize("loop", [AT_EPOCH_ENDS, BEFORE_STEPS], ids=["at epoch ends", "before steps"])
def test_a_newcomer_is_let_in_at_the_end_of_an_epoch(trials: Trials, loop: str) -> None:
    """After its last step a checkpoint is due, which the newcomer must take part in before anything else."""
    calm = trials.calm(own_loop(loop), *WORDS)
    # in the step before the last one of an epoch the others wait until it is at the door, and it does not come before
    arrived = "current().attendance.change_wanted(current().attendance._link.word.view)"
    waits = f"step() == 18 and size() == 2 and (once('last') or True) and until(lambda: {arrived})"
    hurt = own_loop(loop, forward=f"rank() == 1 and step() == 12 and die(); {waits}")
    comes = "MARKS.joinpath('die').exists() and until(lambda: MARKS.joinpath('last').exists())"
    hurt = hurt.replace("run = shoal.prepare(", f"{comes}\nrun = shoal.prepare(")
    done, run = trials.train(hurt, *WORDS)
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert len(run.events("view")[-1]["pids"]) == 3, "the newcomer was not let in"
