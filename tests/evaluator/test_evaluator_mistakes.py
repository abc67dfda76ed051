"""An evaluator that is asked for in vain: said before anything is trained, with what to do."""

from __future__ import annotations

import pytest
from evaluator_runs import Runs

import shoal.cli.main

OWN_LOOP = """
run = shoal.prepare(nn.Linear(10, 4), lambda p: torch.optim.SGD(p, lr=0.1), nn.CrossEntropyLoss(), global_batch=16)
for batch in run.batches(data(97, 1)):
    run.step(batch)
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("words", "fit", "expected"),
    [
        ((), "trainer(test=None).fit()", "needs test data: give test=... to the Trainer"),
        ((), OWN_LOOP, "A loop of your own evaluates by run.evaluate(data)"),
        (("--set", "checkpoint.every=never"), "trainer().fit()", "checkpoint.every=never writes none"),
        ((), 'trainer(checkpoint={"every": "never"}).fit()', "checkpoint.every=never writes none"),
        (("--set", "checkpoint.monitor=test_acuracy"), "trainer().fit()", "did you mean 'test_accuracy'?"),
        (("--set", "evaluator.every_s=-1"), "trainer().fit()", "evaluator.every_s=-1"),
        (("--dry-run",), "trainer(test=None).fit()", "needs test data"),
    ],
)
def test_it_would_have_nothing_to_do(runs: Runs, words: tuple[str, ...], fit: str, expected: str) -> None:
    done = runs.train("--evaluator", *words, fit=fit)
    assert done.status == 2, done
    assert done.err.startswith("shoal: error: ")
    assert expected in done.err
    assert "Traceback" not in done.err
    assert not runs.run.exists()


@pytest.mark.unit
def test_the_help_names_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert shoal.cli.main.main(["train", "--help"]) == 0
    assert "--evaluator" in capsys.readouterr().out
    assert shoal.cli.main.main(["settings"]) == 0
    assert "evaluator.every_s" in capsys.readouterr().out
