"""The judge sees what it should: evidence of a run that kept the laws, spoiled in one thing at a time."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.checkpoint.catalog import Catalog
from shoal.testing.soak import judge as judging
from shoal.testing.soak import play, trying
from shoal.testing.soak.calm import Calm
from shoal.testing.soak.case import Case
from shoal.testing.soak.conduct import Evidence, Leg, gather, goes_on
from shoal.testing.soak.hurting import MARKS, PIDS
from shoal.testing.soak.judge import judge, promises_bits
from shoal.testing.soak.network import make_model
from shoal.testing.soak.seats import Seats
from shoal.testing.soak.way import Way

pytestmark = pytest.mark.mutation
CASE = Case.parse(
    "samples=17 batch=5 grainwise=yes grain=2 dataset=yes optimizer=momentum | strategy=single workers=1 |"
)
KILLED = {"kind": "kill", "step": 3, "leg": 0, "rank": 0, "pids": [77], "time": 1.0}
LOST = {"kind": "member_lost", "role": "worker", "rank": 0, "pid": 77, "cause": "killed by signal 9 (SIGKILL)"}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """A run in this process: one worker, whom nothing happens to."""
    place = tmp_path_factory.mktemp("case")
    for folder in (MARKS, PIDS, play.SEEN, play.READ):
        (place / folder).mkdir()
    (place / play.ORDER).write_text(json.dumps({"case": CASE.text(), "leg": 0}))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        settings = play._settings
        patch.setattr(play, "_settings", lambda program: {**settings(program), "run_dir": "run"})
        patch.chdir(place)
        play.play()
    return gather(place, [Leg(CASE.way, 0, "", "", 1.0)])


def laws(evidence: Evidence, calm: Calm | None = None) -> list[str]:
    return [violation.law for violation in judge(CASE, evidence, calm).violations]


def test_a_run_that_kept_the_laws_passes(evidence: Evidence) -> None:
    assert judge(CASE, evidence).outcome == "passed"
    assert promises_bits(CASE, evidence)
    assert laws(evidence, Calm.of(CASE.program, evidence)) == []


def _leg(evidence: Evidence, **changes: Any) -> Evidence:
    return replace(evidence, legs=(*evidence.legs[:-1], replace(evidence.last, **changes)))


def _summary(evidence: Evidence, **changes: Any) -> Evidence:
    return replace(evidence, summary={**evidence.summary, **changes})


SPOILED: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "a command that hangs": (lambda e: _leg(e, status=None, stacks="worker 1: in a barrier"), "waits"),
    "a command that fails": (lambda e: _leg(e, status=1, err="worker 0 failed"), "completes"),
    "a traceback that is survived": (lambda e: _leg(e, err="Traceback (most recent call last):\n"), "error"),
    "a refusal that nobody knows of": (lambda e: _leg(e, status=2, err="shoal: error: no"), "completes"),
    "a summary of an interruption": (lambda e: _summary(e, status="interrupted"), "completes"),
    "a process that is left": (lambda e: _leg(e, left=("process 7",)), "leaves"),
    "a sample that the run has missed": (
        lambda e: _summary(e, coverage={"expected": 34, "once": 33, "missed": 1, "repeated": 0}),
        "coverage",
    ),
    "a sample that was never read": (lambda e: replace(e, read=tuple(n for n in e.read if n != 3)), "coverage"),
    "a pass that nobody made": (lambda e: replace(e, seen=e.seen[1:]), "coverage"),
    "a pass that was made twice": (lambda e: replace(e, seen=(*e.seen, e.seen[-1])), "coverage"),
    "a step too many": (lambda e: _summary(e, steps=9), "coverage"),
    "no checkpoint": (lambda e: replace(e, run_dir=Path("nowhere")), "checkpoint"),
    "a test loss of another model": (lambda e: _summary(e, final={"test_loss": 9.0}), "mathematics"),
    "someone named whom nobody hurt": (lambda e: replace(e, events=(*e.events, LOST)), "culprit"),
    "someone hurt whom nobody names": (lambda e: replace(e, hits=(KILLED,)), "culprit"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_is_seen(evidence: Evidence, name: str) -> None:
    spoil, law = SPOILED[name]
    assert law in laws(spoil(evidence))


def test_who_was_hurt_and_is_named_is_right(evidence: Evidence) -> None:
    assert laws(replace(evidence, hits=(KILLED,), events=(*evidence.events, LOST))) == []


def test_other_bits_are_seen(evidence: Evidence) -> None:
    calm = Calm.of(CASE.program, evidence)
    assert calm is not None
    assert laws(evidence, replace(calm, bits="0" * 64)) == ["bits"]


def test_parameters_that_are_a_little_off_are_seen(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Catalog.newest_valid

    def spoiled(self: Catalog, warn: Any) -> Any:
        found = right(self, warn)
        assert found is not None
        found.state.pieces["model.head.weight"].tensor[0, 0] += 0.01
        return found

    monkeypatch.setattr(Catalog, "newest_valid", spoiled)
    assert laws(evidence) == ["mathematics"]


MIXING, PLAIN = Way("async", 3, mixing=True), Way("async", 3)


@pytest.mark.parametrize(
    ("way", "part", "still", "broken"),
    [
        (PLAIN, 1.0, "", []),
        (PLAIN, 0.1, "", ["learning"]),
        (PLAIN, 1.0, "head.bias", ["learning"]),
        (MIXING, 0.1, "", []),  # three and the centre share what one of them has learned
        (MIXING, 0.0, "", ["learning"] * 2),
        (MIXING, 0.02, "", ["learning"]),
        (MIXING, 0.25, "head.weight", ["learning"]),
        (MIXING, 0.25, "entry.bias", ["learning"]),
        (Way("async", 3, codec="int8"), 1.0, "head.bias", ["learning"]),
        (Way("async", 3, codec="topk:0.2"), 1.0, "head.bias", []),  # it may not have been among the largest yet
        (Way("async", 3, codec="topk:0.2"), 0.1, "", ["learning"]),
    ],
)
def test_a_model_that_does_not_learn_or_a_parameter_that_is_not_trained_is_seen(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch, way: Way, part: float, still: str, broken: list[str]
) -> None:
    """The model has gone only a part of the way that it should have gone, one of its parameters nothing."""
    right, begun = Catalog.newest_valid, make_model(CASE.program).state_dict()

    def spoiled(self: Catalog, warn: Any) -> Any:
        found = right(self, warn)
        assert found is not None
        for name, first in begun.items():
            found.state.pieces[f"model.{name}"].tensor.lerp_(first, 1.0 if name == still else 1.0 - part)
        return found

    monkeypatch.setattr(Catalog, "newest_valid", spoiled)
    assert laws(_leg(evidence, way=way)) == broken
    monkeypatch.setattr(judging, "LESSON", 1.0)  # as if there had been nothing to learn: parameters move all the same
    assert len(laws(_leg(evidence, way=way))) == len(broken) - (part < 0.2 / (4 if way.mixing else 1))


def test_a_refusal_that_is_documented_is_no_failure(evidence: Evidence) -> None:
    message = "shoal: error: torch.optim.muon.Muon looks at whole arrays: it cannot update single rows of a table"
    refused = replace(_leg(evidence, status=2, err=message), events=())
    assert judge(CASE, refused).outcome == "refused"
    assert judge(CASE, _leg(refused, err=f"Traceback (most recent call last):\n{message}")).outcome == "failed"


def test_going_on_in_a_way_that_cannot_run_the_program_is_refused(evidence: Evidence) -> None:
    message = "shoal: error: statistics=global, but with strategy=async workers do not compute one global batch"
    case = Case.parse(f"norm=batch whole=yes {CASE.text()}")
    interrupted = replace(evidence.last, status=130)

    def outcome(way: Way, first: Leg = interrupted, err: str = message) -> str:
        legs = (first, replace(evidence.last, way=way, status=2, err=err))
        return judge(case, replace(evidence, legs=legs)).outcome

    assert outcome(Way("async")) == "refused"
    assert outcome(Way("allreduce")) == "failed", "what can be run is not to be refused"
    assert outcome(Way("async"), err="shoal: error: no") == "failed"
    assert outcome(Way("async"), first=replace(interrupted, left=("process 7",))) == "failed"
    assert outcome(Way("async"), first=replace(interrupted, err="Traceback (most recent call last):\n")) == "failed"


INTERRUPT = {**KILLED, "kind": "interrupt"}
SERVER = {**KILLED, "kind": "server"}
ENDED = Leg(CASE.way, 130, "", "stopping after this step", 1.0)
AGAIN = Leg(CASE.way, 1, "", "a loop of your own cannot go back: run the same command again", 1.0)


def test_a_command_goes_on_if_a_fault_of_its_own_time_has_ended_it() -> None:
    assert goes_on([ENDED], [INTERRUPT])
    assert goes_on([AGAIN], [SERVER])
    assert goes_on([AGAIN, ENDED], [SERVER, {**INTERRUPT, "leg": 1}]), "each by another fault"
    assert not goes_on([ENDED, ENDED], [INTERRUPT]), "nobody has interrupted the second"
    assert not goes_on([AGAIN, AGAIN], [SERVER])
    assert not goes_on([ENDED], [SERVER]), "a lost server does not end a command that does not say so"
    assert not goes_on([replace(ENDED, status=0)], [INTERRUPT])


def test_only_a_lost_server_takes_all_back_within_a_view(evidence: Evidence) -> None:
    again = tuple(one for one in evidence.seen if one["step"] == 2)
    repeated = replace(evidence, seen=(*evidence.seen, *again))
    assert laws(repeated) == ["coverage"]
    lost = {"kind": "server", "step": 2, "leg": 0, "rank": 0, "pids": [78], "time": 1.0}
    assert laws(replace(repeated, hits=(lost,))) == []
    half = replace(evidence, seen=(*evidence.seen, again[0]), hits=(lost,))
    assert laws(half) == ["coverage"]


def test_bits_are_expected_only_where_the_run_keeps_grains_apart(evidence: Evidence) -> None:
    assert not promises_bits(CASE, replace(evidence, config={**evidence.config, "passes": "merged"}))


def test_the_calm_worker_cuts_as_the_run_has_cut(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What Shoal has chosen depends on how many workers were announced, and bits on what was chosen."""
    conducted: list[Case] = []

    def conduct(case: Case, place: Path, seats: Seats) -> Evidence:
        conducted.append(case)
        return evidence

    monkeypatch.setattr(trying, "conduct", conduct)
    open_case = replace(CASE, program=replace(CASE.program, grain=0))
    assert trying.try_case(open_case, tmp_path, Seats(tmp_path)).outcome == "passed"
    assert [case.program.grain for case in conducted] == [0, 2]
