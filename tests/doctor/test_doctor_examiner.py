"""An examination, over a store in memory: who comes is examined, who does not come or stops to answer is named."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from doctor_cases import GOOD

from shoal.core.errors import ShoalError, UserError
from shoal.elastic.messages import Request, StoreAdd, StoreGet, StoreSet
from shoal.launch.doctor import examiner, patient
from shoal.launch.doctor.deadline import EXAMINATION_S, Deadline
from shoal.launch.doctor.examiner import Examiner
from shoal.launch.doctor.exchange import Exchange
from shoal.launch.doctor.findings import Finding, bad_hosts
from shoal.launch.doctor.patient import attend

pytestmark = pytest.mark.unit


class Store:
    """What a coordinator's store does, in memory."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._numbers: dict[str, int] = {}
        self._changed = threading.Condition()

    def request(self, operation: Request, timeout_s: float) -> Any:
        with self._changed:
            if isinstance(operation, StoreAdd):
                self._numbers[operation.key] = self._numbers.get(operation.key, 0) + operation.amount
                return self._numbers[operation.key]
            if isinstance(operation, StoreSet):
                self._values[operation.key] = operation.value
                self._changed.notify_all()
                return None
            assert isinstance(operation, StoreGet)
            self._changed.wait_for(lambda: all(key in self._values for key in operation.keys), operation.wait_s)
            return [self._values.get(key) for key in operation.keys]


class Absent:
    """Nobody answers."""

    def request(self, operation: Request, timeout_s: float) -> Any:
        raise ShoalError("no answer")


class Patients:
    """Hosts in threads, all of them this machine: each with an identity of its own."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store = store
        self.words: dict[str, str] = {}
        self._threads: list[threading.Thread] = []
        self.identity = threading.local()
        monkeypatch.setattr(patient, "gather", lambda address: dataclasses.replace(GOOD, address=address))
        monkeypatch.setattr(patient, "same_host_id", lambda: self.identity.value)

    def come(self, name: str, identity: str | None = None) -> None:
        def go() -> None:
            self.identity.value = identity or name
            try:
                self.words[name] = attend(Exchange(self._store), "127.0.0.1", name, order_s=30)
            except ShoalError as error:
                self.words[name] = str(error)

        self._threads.append(threading.Thread(target=go))
        self._threads[-1].start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(60)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def patients(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patients]:
    monkeypatch.setattr(examiner, "_MOST_S", 0.02)
    monkeypatch.setattr(examiner, "_LEAST_S", 0.02)
    made = Patients(store, monkeypatch)
    yield made
    made.end()


def rows(findings: list[Finding], check: str) -> list[str]:
    return [one.host for one in findings if one.check == check]


def test_all_hosts_and_every_link_both_ways(store: Store, patients: Patients) -> None:
    examining = Examiner(Exchange(store))
    for name in "abc":
        patients.come(name)
    facts, findings = examining.examine(["a", "b", "c"], wait_s=30)
    patients.end()
    assert sorted(one.host for one in facts) == ["a", "b", "c"]
    assert sorted(rows(findings, "link")) == ["a -> b", "a -> c", "b -> a", "b -> c", "c -> a", "c -> b"]
    assert len(rows(findings, "clock")) == 2, "the examiner's own clock is what the others are held to"
    assert all("3 hosts were examined" in words for words in patients.words.values())


def test_who_does_not_come_is_named_with_the_reason(store: Store, patients: Patients) -> None:
    patients.come("a")
    _, findings = Examiner(Exchange(store)).examine(["a", "b"], 30, absent=lambda: {"b": "Connection refused"})
    answers = [one for one in findings if one.check == "answers"]
    assert [(one.host, one.value) for one in answers] == [("b", "Connection refused")]
    assert "b" in bad_hosts(findings)


def test_who_is_late_is_not_waited_for_for_ever(store: Store, patients: Patients) -> None:
    patients.come("a")
    begun = time.monotonic()
    _, findings = Examiner(Exchange(store)).examine(["a", "", ""], wait_s=0.5)
    assert [(one.host, one.verdict) for one in findings if one.check == "answers"] == [("2 more", "bad")]
    assert time.monotonic() - begun < 60


def test_a_host_that_stops_to_answer_is_named(
    store: Store, patients: Patients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner, "_ANSWER_S", 5.0)
    obey = patient._obey
    stuck = threading.Event()

    def sometimes(order: dict[str, Any], token: bytes) -> dict[str, Any]:
        if patients.identity.value == "b":
            stuck.wait(60)
        return obey(order, token)

    monkeypatch.setattr(patient, "_obey", sometimes)
    for name in "abc":
        patients.come(name)
    _, findings = Examiner(Exchange(store)).examine(["a", "b", "c"], wait_s=30)
    stuck.set()
    assert "b" in [one.host for one in findings if one.check == "answers" and one.verdict == "bad"]
    assert "b" in bad_hosts(findings)
    # what the others have to say is not lost
    assert set(rows(findings, "link")) >= {"a -> c", "c -> a"}


def test_one_host_that_comes_twice_counts_once(store: Store, patients: Patients) -> None:
    examining = Examiner(Exchange(store))
    patients.come("here")
    patients.come("also-here", identity="here")
    facts, findings = examining.examine(["here", "also-here"], wait_s=30)
    assert len(facts) == 1
    assert rows(findings, "answers") in ([], ["here"], ["also-here"])
    patients.end()
    assert "this host is examined already" in patients.words.values()


def test_two_hosts_of_one_name_are_told_apart(store: Store, patients: Patients) -> None:
    examining = Examiner(Exchange(store))
    patients.come("node")
    patients.come("node", identity="another")
    facts, _ = examining.examine(["node", ""], wait_s=30)
    assert sorted(one.host for one in facts) == ["node", "node (127.0.0.1)"]


class Mute:
    """A store to which hosts have come, on a clock of its own: `facts` of them have said what they are, and all fall
    silent. `deaf`: so does the store itself, to whoever asks for what is not there."""

    def __init__(self, hosts: int, facts: int, deaf: bool = False) -> None:
        self.now_s = 1000.0
        self._hosts, self._facts, self._deaf = hosts, facts, deaf

    def clock(self) -> float:
        return self.now_s

    def request(self, operation: Request, timeout_s: float) -> Any:
        if isinstance(operation, StoreAdd):
            return self._hosts
        if isinstance(operation, StoreSet):
            return None
        assert isinstance(operation, StoreGet)
        number, what = operation.keys[0].removeprefix("doctor/").split("/")[:2]
        if what == "facts" and int(number) <= self._facts:
            facts = dataclasses.replace(GOOD, host=f"host-{number}")
            return [json.dumps({"facts": facts.to_json(), "port": 1, "id": number}).encode()]
        if self._deaf:
            self.now_s += timeout_s
            raise ShoalError("no answer")
        assert operation.wait_s < timeout_s
        self.now_s += operation.wait_s
        return [None]


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("facts", [0, 1, 40])
def test_an_examination_is_over_in_time_whoever_does_not_answer(facts: int, deaf: bool) -> None:
    mute = Mute(40, facts, deaf)
    examining = Examiner(Exchange(mute, mute.clock), Deadline(clock=mute.clock))
    _, findings = examining.examine([f"host-{number}" for number in range(1, 41)], wait_s=0)
    assert mute.now_s - 1000.0 < 29.0
    assert rows(findings, "answers") == [f"host-{number}" for number in (*range(facts + 1, 41), *range(1, facts + 1))]
    assert {one.verdict for one in findings if one.check == "answers"} == {"bad"}


class Sluggish(Store):
    """Hosts that answer everything, each time after so many seconds of a clock of their own."""

    def __init__(self, hosts: int, answer_s: float) -> None:
        super().__init__()
        self.now_s = 1000.0
        self._hosts, self._answer_s = hosts, answer_s

    def clock(self) -> float:
        return self.now_s

    def request(self, operation: Request, timeout_s: float) -> Any:
        if isinstance(operation, StoreAdd):
            return self._hosts
        if not isinstance(operation, StoreGet):
            return super().request(operation, timeout_s)
        number, what = operation.keys[0].removeprefix("doctor/").split("/")[:2]
        if what == "facts":
            facts = dataclasses.replace(GOOD, host=f"host-{number}")
            return [json.dumps({"facts": facts.to_json(), "port": 1, "id": number}).encode()]
        self.now_s += self._answer_s
        return [json.dumps({"time": time.time(), "bytes_per_s": 1e9, "latency_s": 1e-4}).encode()]


def test_what_was_left_out_for_want_of_time_is_named_and_nobody_called_silent() -> None:
    slow = Sluggish(12, 0.15)
    examining = Examiner(Exchange(slow, slow.clock), Deadline(clock=slow.clock))
    _, findings = examining.examine([""] * 12, wait_s=0)
    assert slow.now_s - 1000.0 < EXAMINATION_S + 1.0
    assert not bad_hosts(findings)
    assert not rows(findings, "answers")
    measured = [one for one in findings if one.check == "link" and "->" in one.host]
    left_out = {one.host: int(one.value.split()[0]) for one in findings if "not measured: no time" in one.value}
    assert set(left_out) == {f"host-{number}" for number in range(1, 13)}
    assert len(measured) + sum(left_out.values()) == 12 * 11


@pytest.mark.parametrize(
    ("requests", "words"),
    [(Absent(), "nobody examines there"), (Store(), "gave no token")],
)
def test_nobody_examines(requests: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient, "REACH_S", 0.2)
    with pytest.raises(UserError, match=words):
        attend(Exchange(requests), "127.0.0.1", "a")


def test_an_examiner_that_is_gone_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Examiner(Exchange(store))
    monkeypatch.setattr(patient, "gather", lambda address: GOOD)
    with pytest.raises(UserError, match="gave no order"):
        attend(Exchange(store), "127.0.0.1", "a", order_s=0.2)
