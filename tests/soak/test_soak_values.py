"""Cases are values: drawn from a seed, written on a line, made smaller."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest
import torch

from shoal.core.errors import ConfigError
from shoal.testing.soak.case import Case, draw_case, runs_by, sound_case
from shoal.testing.soak.history import KINDS, Fault
from shoal.testing.soak.network import make_data, make_model
from shoal.testing.soak.oracle import Unfit, _Untouched, truth
from shoal.testing.soak.pairs import AXES, covering, covering_cases, pairs
from shoal.testing.soak.program import BODIES, LOSSES, NORMS, OPTIMIZERS, Program
from shoal.testing.soak.shrink import simpler_than
from shoal.testing.soak.way import STRATEGIES, Way

pytestmark = pytest.mark.unit
DRAWN = [draw_case(5, number) for number in range(250)]


def test_a_case_is_a_function_of_seed_and_number() -> None:
    assert draw_case(5, 17) == DRAWN[17]
    assert len(set(DRAWN)) == len(DRAWN)
    assert draw_case(6, 17) != DRAWN[17]


def test_a_line_repeats_a_case() -> None:
    for case in DRAWN:
        assert Case.parse(case.text()) == case
        assert "\n" not in case.text()


@pytest.mark.parametrize("text", ["", "batch=3", "batch=x | |", "bach=3 | |", "| strategy=single | kill@x:0:forward"])
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Case.parse(text)


def test_everything_is_drawn() -> None:
    programs, ways = [case.program for case in DRAWN], [case.way for case in DRAWN]
    assert {program.body for program in programs} == set(BODIES)
    assert {program.norm for program in programs} == set(NORMS)
    assert {program.loss for program in programs} == set(LOSSES)
    assert {program.optimizer for program in programs} == set(OPTIMIZERS)
    assert {way.strategy for way in ways} == set(STRATEGIES)
    assert {way.workers for way in ways} == {1, 2, 3, 4, 5}
    assert {way.servers for way in ways} == {1, 2, 3}
    assert {fault.kind for case in DRAWN for fault in case.history.faults} == set(KINDS)
    assert any(program.samples % program.batch == 1 for program in programs), "a last batch of one sample"
    assert any(case.program.samples < case.way.workers for case in DRAWN) or any(
        case.program.samples % case.program.batch in range(1, case.way.workers) for case in DRAWN
    ), "fewer samples than workers"


def test_a_run_goes_on_in_a_way_that_can_run_its_program() -> None:
    """A refusal tells nothing of a resumption."""
    ways = [(case.program, case.history.then) for case in DRAWN if case.history.then is not None]
    assert all(runs_by(program, then) for program, then in ways)
    for then in ("strategy=async", "strategy=parameter-server consistency=asp", "strategy=hybrid outer=incremental"):
        whole = sound_case(Case.parse(f"norm=batch whole=yes samples=17 batch=5 | | interrupt@4:0:step | {then}"))
        assert whole.history.then is not None
        assert whole.history.then.in_step
    rows = sound_case(Case.parse("body=table sparse=yes optimizer=muon | | interrupt@4:0:step | strategy=async"))
    assert rows.history.then == Way("allreduce")
    kept = sound_case(Case.parse("norm=batch whole=yes | | interrupt@4:0:step | strategy=parameter-server servers=2"))
    assert kept.history.then == Way("parameter-server", servers=2)


def test_faults_can_be_left_out() -> None:
    drawn = [draw_case(5, number, frozenset({"kill", "all"})) for number in range(40)]
    assert not {fault.kind for case in drawn for fault in case.history.faults} & {"kill", "all"}


def test_programs_can_be_trained_in_plain_pytorch() -> None:
    """Few are not: nothing is learned from a loss that is not finite."""
    unfit = 0
    for case in DRAWN[:15]:
        try:
            found = truth(case.program, case.program.looks_at or case.program.batch)
            assert len(found.losses) == case.program.steps
        except Unfit:
            unfit += 1
    assert unfit <= 2


def test_simpler_cases_are_others_and_make_sense() -> None:
    for case in DRAWN[:12]:
        told = list(simpler_than(case))
        assert case not in told
        assert all(sound_case(simpler) == simpler for simpler in told)
        assert all(len(simpler.history.faults) <= len(case.history.faults) for simpler in told)


def test_a_case_gets_as_small_as_can_be() -> None:
    """With a failure that needs two things only."""

    def fails(case: Case) -> bool:
        return case.way.strategy == "hybrid" and any(fault.kind == "kill" for fault in case.history.faults)

    case = next(case for case in DRAWN if fails(case) and len(case.history.faults) > 1)
    while (simpler := next(filter(fails, simpler_than(case)), None)) is not None:
        case = simpler
    assert len(case.history.faults) == 1
    assert case.program.norm == "none"
    assert case.way.codec == "none"


def test_every_two_choices_meet() -> None:
    axes = tuple(AXES.values())
    chosen = covering(axes)
    met = {pair for choice in chosen for pair in pairs(choice)}
    for (a, first), (b, second) in combinations(enumerate(axes), 2):
        for one, other in product(first, second):
            assert ((a, one), (b, other)) in met
    assert len(chosen) <= 70, "as few as go into a test"
    assert covering(axes) == chosen


def test_the_covering_set_can_be_run() -> None:
    for case in covering_cases():
        assert sound_case(case) == case
        assert all(fault.at < case.program.steps - 1 for fault in case.history.faults)
        assert Fault.parse(case.history.faults[0].text()) if case.history.faults else True


def test_a_table_on_servers_is_updated_by_rows_and_elsewhere_whole() -> None:
    program = Case.parse("body=table sparse=yes rows=40 optimizer=adamw samples=17 batch=5 | |").program
    whole, by_rows = truth(program, 5), truth(program, 5, by_rows=True)
    assert not torch.equal(whole.parameters["entry.weight"], by_rows.parameters["entry.weight"])
    plain = replace(program, optimizer="sgd")
    torch.testing.assert_close(truth(plain, 5).parameters, truth(plain, 5, by_rows=True).parameters)


def test_of_rows_that_no_batch_has_touched_nothing_is_remembered() -> None:
    """By plain PyTorch weight decay alone would begin a momentum for them at the first step."""
    program = Case.parse("body=table sparse=yes rows=40 optimizer=momentum samples=3 batch=3 | |").program
    model, (named, *_) = make_model(program), make_data(program)
    table = model.entry.weight
    optimizer = torch.optim.SGD([table], lr=0.1, momentum=0.9, weight_decay=0.1)
    table.grad = torch.zeros_like(table)
    untouched = _Untouched(model, optimizer, named)
    optimizer.step()
    untouched.put_back()
    rows = torch.ones(len(table), dtype=torch.bool)
    rows[named.flatten()] = False
    memory = optimizer.state[table]["momentum_buffer"]
    assert memory[~rows].any()
    assert not memory[rows].any()


def test_where_a_batch_has_fewer_grains_than_trainers_each_makes_a_part_of_the_steps() -> None:
    five = Way("incremental", 5)
    assert five.steps_of_one(Program(batch=7, grain=5)) == 2 / 5
    assert five.steps_of_one(Program(batch=20, grain=4)) == 1.0
    assert five.steps_of_one(Program(batch=32, norm="batch")) == 2 / 5
    assert five.steps_of_one(Program(batch=32)) == 1.0
    assert Way("hybrid", 5, outer="incremental", team=2).steps_of_one(Program(batch=7, grain=7)) == 1 / 3
    assert Way("async", 5).steps_of_one(Program(batch=7, grain=7)) == 1.0


def test_a_program_that_makes_much_of_rounding_is_known_by_it() -> None:
    """Batch normalisation over two samples that are alike, and an optimizer that divides small by small."""
    words = "seed=601 samples=34 grain=2 body=table extras=tied,frozen sparse=yes loss=smooth optimizer=adafactor"
    for norm, least, most in (("batch", 1e-4, 1e-2), ("layer", 0.0, 1e-6)):
        program = Case.parse(f"{words} norm={norm} | |").program
        right, other = truth(program, 2), truth(program, 2, nudged=True)
        apart = max(float((other.parameters[name] - right.parameters[name]).norm()) for name in right.parameters)
        assert least <= apart / max(float(one.norm()) for one in right.parameters.values()) <= most
