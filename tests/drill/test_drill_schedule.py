"""Schedules: the random one is a pure function of its seed; files are read, or refused by line."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.drill.kinds import KINDS, check_possible, parse_kinds
from shoal.drill.schedule import FaultPlan, check_plans, pace_for, random_schedule
from shoal.drill.schedule_file import parse_schedule, read_schedule

pytestmark = pytest.mark.unit

ALL = tuple(KINDS.get(name) for name in KINDS)


@given(
    seed=st.integers(0, 1000), faults=st.integers(1, 40), steps=st.integers(60, 5000), workers=st.integers(2, 8),
    kinds=st.sets(st.sampled_from(ALL), min_size=1),
)  # fmt: skip
def test_a_random_schedule_is_pure_and_spaced(seed: int, faults: int, steps: int, workers: int, kinds: set) -> None:
    chosen = sorted(kinds, key=lambda kind: kind.name)
    plans = random_schedule(seed, faults, chosen, steps, workers, hosts=3)
    assert plans == random_schedule(seed, faults, chosen, steps, workers, hosts=3)
    assert len(plans) == faults
    assert all(0 < plan.at_step < steps * 0.9 + 1 for plan in plans)
    check_plans([plan for plan in plans if plan.kind != "coordinator"], steps, workers, hosts=3)
    part = (int(steps * 0.9) - max(1, int(steps * 0.05))) / faults
    assert all(later.at_step - sooner.at_step >= max(1, int(part / 2)) for sooner, later in pairwise(plans))
    counts = Counter(plan.kind for plan in plans)
    assert max(counts.values()) - min(counts[kind.name] for kind in chosen) <= 1


def test_another_seed_gives_another_schedule() -> None:
    kinds = parse_kinds("kill,freeze")
    assert random_schedule(1, 10, kinds, 1000, 3) != random_schedule(2, 10, kinds, 1000, 3)


def test_more_faults_than_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--faults 20 do not fit into a run of 10 steps.*--epochs"):
        random_schedule(1, 20, parse_kinds("kill"), 10, 3)


def test_a_short_run_is_slowed_down_and_a_long_one_is_not() -> None:
    plans = [FaultPlan("kill", 10)] * 10
    assert pace_for(plans, steps=1000, step_s=0.05) == 0.0
    pace = pace_for(plans, steps=100, step_s=0.01)
    assert 0.85 * 100 * (pace + 0.01) == pytest.approx(12.0, rel=0.02)
    assert pace_for(plans, 100, 0.01, start_s=12.0) == pytest.approx(2 * pace + 0.01, abs=0.002)
    assert pace_for([FaultPlan("cut", 10, 1, seconds=9.0)], 100, 0.01) == pytest.approx(18 / 85 - 0.01, abs=0.002)
    assert pace_for([], 100, 0.01) == 0.0


def test_kinds_by_name() -> None:
    assert [kind.name for kind in parse_kinds("kill, freeze,kill")] == ["kill", "freeze"]
    with pytest.raises(ConfigError, match=r"--kinds kil: unknown kind of fault 'kil': did you mean 'kill'"):
        parse_kinds("kil")
    with pytest.raises(ConfigError, match="names no kind of fault: choose among"):
        parse_kinds(" , ")


def test_what_cannot_be_done_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"'cut' .*several hosts: give --hosts 2.*as root"):
        check_possible(parse_kinds("kill,cut"), workers=3, hosts=1)
    with pytest.raises(ConfigError, match="--workers 1 leaves nobody to go on"):
        check_possible(parse_kinds("kill"), workers=1, hosts=1)
    check_possible(parse_kinds("slow,coordinator"), workers=1, hosts=1)
    check_possible(parse_kinds("cut"), workers=2, hosts=2)


def test_a_file_of_yaml_or_json(tmp_path: Path) -> None:
    text = "- {kind: freeze, at_step: 40, seconds: 1.5}\n- kind: kill\n  at_step: 20\n  target: 1\n"
    plans = [FaultPlan("kill", 20, 1), FaultPlan("freeze", 40, 0, 1.5)]
    assert parse_schedule(text) == plans
    file = tmp_path / "faults.json"
    file.write_text(
        '{"faults": [\n {"kind": "kill", "at_step": 20, "target": 1},\n'
        ' {"kind": "freeze", "at_step": 40, "seconds": 1.5}\n]}'
    )
    assert read_schedule(file) == plans
    assert parse_schedule("- {kind: cut, at_step: 3}")[0].target == 1


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 0, "there are no faults"),
        ("[]", 1, "there are no faults"),
        ("kill", 1, "there are no faults"),
        ("# a\nfault:\n  - {kind: kill}", 2, "a schedule is a list of faults"),
        ("- {kind: kill, at_step: 20}\n- kill", 2, "a fault is written as"),
        (
            "- {kind: kill, at_step: 20}\n- kind: kil\n  at_step: 3",
            2,
            "unknown kind of fault 'kil': did you mean 'kill'?",
        ),
        ("- {kind: kill, at_step: 20}\n- kind: kill", 2, "at_step is missing"),
        ("- at_step: 3", 1, "kind is missing"),
        ("- kind: kill\n  at_stepp: 3", 2, "unknown field 'at_stepp': did you mean 'at_step'?"),
        ("- kind: kill\n  at_step: soon", 2, "at_step is 'soon': give the number of a step, 1 or more"),
        ("- kind: kill\n  at_step: 0", 2, "at_step is 0"),
        ("- kind: kill\n  at_step: true", 2, "at_step is True"),
        ("- kind: kill\n  at_step: 1\n  target: -1", 3, "target is -1: give the rank of a worker"),
        ("- kind: kill\n  at_step: 1\n  seconds: 0", 3, "seconds is 0: give a number above 0"),
        ("- kind: kill\n  at_step: 1\n  seconds: .inf", 3, "seconds is inf"),
        ("- kind: kill\n  at_step: 1\n  at_step: 2", 3, "at_step is given twice"),
        ("- kind: kill\n  at_step: [1\n", 3, ""),
        ('[{"kind": "kill",\n  "at_step" 3}]', 2, ""),
    ],
)
def test_a_bad_file_is_refused_by_line(text: str, line: int, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schedule(text, "--schedule f.yaml")
    begin = f"--schedule f.yaml, line {line}: " if line else "--schedule f.yaml: "
    assert str(caught.value).startswith(begin + what)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_schedule(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_schedule(tmp_path)


def test_plans_that_the_run_can_never_meet() -> None:
    with pytest.raises(ConfigError, match="a kill of worker 0 at step 120, but the run has 120 steps"):
        check_plans([FaultPlan("kill", 120)], steps=120, workers=3)
    with pytest.raises(ConfigError, match="kill of worker 3 at step 5, but --workers 3 are numbered 0 to 2"):
        check_plans([FaultPlan("kill", 5, 3)], steps=120, workers=3)
    with pytest.raises(ConfigError, match=r"cut of host 0 at step 5.*host 0 is where the run was started"):
        check_plans([FaultPlan("cut", 5, 0)], steps=120, workers=3, hosts=2)
    check_plans([FaultPlan("coordinator", 5, 7)], steps=120, workers=3)
    with pytest.raises(ConfigError, match="ends the coordinator 21 times, and a run starts it again 20 times at most"):
        check_plans([FaultPlan("coordinator", 5)] * 21, steps=120, workers=3)
