"""The doctor's verdicts: every kind of bad host is named, with what to do; a good one is left in peace."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import Any

import pytest
from doctor_cases import GOOD
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import UserError
from shoal.launch.doctor.facts import HostFacts
from shoal.launch.doctor.findings import (
    GIB,
    MIB,
    Crossing,
    bad_hosts,
    judge_agreement,
    judge_clocks,
    judge_crossings,
    judge_host,
    judge_loopback,
    rounds,
    worst,
)

pytestmark = pytest.mark.unit


def test_a_good_host_has_nothing_to_mend() -> None:
    findings = judge_host(GOOD)
    assert worst(findings) == "ok"
    assert not any(one.remedy for one in findings)
    assert {one.check for one in findings} >= {
        "Python",
        "torch",
        "cores",
        "memory",
        "/dev/shm",
        "free ports",
        "interface",
    }


@pytest.mark.parametrize(
    ("change", "check", "verdict"),
    [
        ({"python": "3.9.18"}, "Python", "bad"),
        ({"torch": ""}, "torch", "bad"),
        ({"torch_problem": "ImportError: libgomp.so.1"}, "torch", "bad"),
        ({"torch_s": 30.0}, "torch", "warn"),
        ({"load": 9.0}, "cores", "warn"),
        ({"available_bytes": GIB}, "memory", "warn"),
        ({"available_bytes": 100 * MIB}, "memory", "bad"),
        ({"shm_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB}, "/dev/shm", "warn"),
        ({"shm_bytes": 0, "shm_free_bytes": 0}, "/dev/shm", "bad"),
        ({"open_files": 512}, "open files", "warn"),
        ({"free_ports": 12}, "free ports", "bad"),
        ({"free_ports": 0, "ports_problem": "nothing can listen on 10.0.0.1"}, "free ports", "bad"),
        ({"interface": ""}, "interface", "bad"),
        ({"speed_mbit": 100}, "interface", "warn"),
    ],
)
def test_what_is_wrong_is_found_and_has_a_remedy(change: dict[str, Any], check: str, verdict: str) -> None:
    findings = judge_host(dataclasses.replace(GOOD, **change))
    wrong = [one for one in findings if one.verdict != "ok"]
    assert [(one.host, one.check, one.verdict) for one in wrong] == [("a", check, verdict)]
    assert wrong[0].remedy


def test_the_host_that_has_another_version_is_named() -> None:
    hosts = [dataclasses.replace(GOOD, host=name) for name in "abc"]
    assert judge_agreement(hosts) == []
    hosts[1] = dataclasses.replace(hosts[1], torch="2.6.0", python="3.12.1")
    findings = judge_agreement(hosts)
    assert [(one.host, one.check, one.verdict) for one in findings] == [
        ("b", "same torch", "bad"),
        ("b", "same python", "warn"),
    ]
    assert "2.13.0" in findings[0].remedy


def test_a_clock_is_wrong_only_beyond_what_the_way_there_explains() -> None:
    findings = judge_clocks({"a": (0.02, 0.03), "b": (-5.0, 0.01), "c": (3600.0, 0.01), "d": (61.0, 2.0)})
    assert [one.verdict for one in findings] == ["ok", "warn", "bad", "warn"]
    assert "behind" in findings[1].value
    assert "ahead" in findings[2].value


def crossings(hosts: str, slow: str = "", rate: float = 1e8) -> list[Crossing]:
    ways = [*combinations(hosts, 2), *((b, a) for a, b in combinations(hosts, 2))]
    return [Crossing(a, b, 1e6 * 2 if slow and slow in a + b else rate, 0.0002) for a, b in ways]


def test_of_three_hosts_the_one_with_the_bad_cable_is_named_though_most_links_are_slow() -> None:
    assert bad_hosts(judge_crossings(crossings("abc", slow="a"))) == ["a"]


def test_the_host_with_the_bad_cable_is_named() -> None:
    findings = judge_crossings(crossings("abcd", slow="c"))
    assert bad_hosts(findings) == ["c"]
    assert {one.host for one in findings if one.verdict == "bad"} == {
        "a -> c", "c -> a", "b -> c", "c -> b", "c -> d", "d -> c", "c",
    }  # fmt: skip


def test_links_that_are_all_alike_single_out_nobody() -> None:
    assert worst(judge_crossings(crossings("abc"))) == "ok"
    slow = judge_crossings(crossings("abc", rate=12.5e6))
    assert worst(slow) == "warn"
    assert bad_hosts(slow) == []


def test_a_host_that_cannot_be_reached_is_named() -> None:
    ways = [
        dataclasses.replace(one, problem="cannot be reached (timed out)") if one.target == "b" else one
        for one in crossings("abc")
    ]
    findings = judge_crossings(ways)
    bad = [one for one in findings if one.verdict == "bad"]
    assert {one.host for one in bad} == {"a -> b", "c -> b"}
    assert "firewall" in bad[0].remedy
    # it cannot reach anybody either: then it is b, whatever the others do
    ways = [dataclasses.replace(one, problem="timed out") if "b" in one.source + one.target else one for one in ways]
    assert bad_hosts(judge_crossings(ways)) == ["b"]


def test_two_hosts_with_a_bad_link_are_not_told_apart() -> None:
    findings = judge_crossings([Crossing("a", "b", problem="timed out"), Crossing("b", "a", 1e8, 0.001)])
    assert worst(findings) == "bad"
    assert bad_hosts(findings) == []


def test_latency_is_judged() -> None:
    assert worst(judge_crossings([Crossing("a", "b", 1e9, 0.05)])) == "warn"
    assert judge_loopback("a", Crossing("a", "a", 1e9, 0.0001)).verdict == "ok"
    assert judge_loopback("a", Crossing("a", "a", problem="refused")).verdict == "bad"


@given(st.integers(0, 30))
def test_every_pair_is_measured_once_and_no_host_twice_at_a_time(hosts: int) -> None:
    plan = rounds(hosts)
    assert sorted(pair for pairs in plan for pair in pairs) == list(combinations(range(hosts), 2))
    for pairs in plan:
        busy = [host for pair in pairs for host in pair]
        assert len(set(busy)) == len(busy)
    assert len(plan) <= max(0, hosts)


def test_facts_survive_the_wire_and_nothing_else_does() -> None:
    assert HostFacts.from_json(GOOD.to_json()) == GOOD
    for wrong in ({**GOOD.to_json(), "more": 1}, {}, {**GOOD.to_json(), "cores": "eight"}):
        with pytest.raises(UserError, match="install the same"):
            HostFacts.from_json(wrong)
