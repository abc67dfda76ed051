"""An examination, over a store in memory: who comes is examined, who does not come or stops to answer is named."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from doctor_cases import GOOD

from shoal.core.errors import ShoalError, UserError
from shoal.elastic.messages import Request, StoreAdd, StoreGet, StoreSet
from shoal.launch.doctor import examiner, patient
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
