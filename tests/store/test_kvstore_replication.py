"""What a primary, its backup and the keeper promise: over random histories, and in the situations that are hardest.
Each rule has a situation that goes wrong without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kvstore_simulation import LEASE_S, Asker, BrokenPromise, Process, World, play

from shoal.comm.bulk import Message
from shoal.store.answered import Answered
from shoal.store.replica import Replica
from shoal.store.replication import Gate

HISTORIES = 6


@pytest.mark.unit
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_is_acknowledged_is_there_once_and_read_by_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    play(seed, monkeypatch)


# ---- situations: each returns normally if all is well


def a_primary_dies_right_after_it_has_answered(patch: pytest.MonkeyPatch) -> None:
    world, asker, first, second = _pair(patch)
    pushed = asker.push(first)
    world.run_until(pushed.done)
    world.kill(first)
    world.run_until(lambda: world.succession.assignment.primary == second.name)
    world.run_until(lambda: second.replica.serving)
    _check(asker, second)


def a_primary_wakes_up_and_is_asked_to_read(patch: pytest.MonkeyPatch) -> None:
    _, asker, first, second = _taken_over(patch)
    first.wake()
    _check(asker, first, may_be_silent=True)
    _check(asker, second)


def a_primary_wakes_up_and_is_asked_to_count(patch: pytest.MonkeyPatch) -> None:
    world, asker, first, second = _taken_over(patch)
    pushed = asker.push(first)
    first.wake()
    world.run_for(3 * LEASE_S)
    assert pushed.done(), "nobody was told anything"
    _check(asker, second)


def only_the_keeper_does_not_hear_the_primary(patch: pytest.MonkeyPatch) -> None:
    world, asker, first, second = _pair(patch)
    world.unheard.add(first.name)
    world.run_until(lambda: second.replica.leader is not None)
    asker.push(second)
    world.run_for(0.11)
    _check(asker, first, may_be_silent=True)


def an_answer_is_lost_and_the_request_repeated(patch: pytest.MonkeyPatch) -> None:
    world, asker, first, second = _pair(patch)
    asker.push(first)
    world.run_for(0.5)
    asker.push(first, anew=False)
    world.run_for(0.5)
    world.kill(first)
    world.run_until(lambda: second.replica.serving)
    asker.push(second, anew=False)
    world.run_for(0.5)
    _check(asker, second)


SITUATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    a_primary_dies_right_after_it_has_answered,
    a_primary_wakes_up_and_is_asked_to_read,
    a_primary_wakes_up_and_is_asked_to_count,
    only_the_keeper_does_not_hear_the_primary,
    an_answer_is_lost_and_the_request_repeated,
]


@pytest.mark.unit
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.__name__)
def test_nothing_is_lost_doubled_or_stale_when(
    situation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    situation(monkeypatch)


# ---- the same without one of the rules


def _answer_before_the_backup_has_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "safe", property(lambda gate: gate.position))


def _read_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "leased", property(lambda gate: True))


def _take_from_earlier_terms(patch: pytest.MonkeyPatch) -> None:
    def take(self: Replica, peer: Any, message: Message, reply: Callable[[Message], None]) -> None:
        if self.leader is None:
            real(self, peer, message, reply)  # type: ignore[arg-type]
        else:
            reply(Message({}))

    real = Replica.take
    patch.setattr(Replica, "take", take)


def _serve_before_the_promise_is_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "serving", property(lambda one: one.leader is not None and not one.leader.fenced))


def _forget_what_was_answered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Answered, "find", lambda self, change, version: None)


def _repeat_under_a_new_number(patch: pytest.MonkeyPatch) -> None:
    real = Asker.push
    patch.setattr(Asker, "push", lambda self, process, anew=True: real(self, process))
    patch.setattr(Asker, "counted", property(lambda self: 1))


MUTATIONS = [
    (_answer_before_the_backup_has_it, a_primary_dies_right_after_it_has_answered, "lost"),
    (_read_without_a_lease, a_primary_wakes_up_and_is_asked_to_read, "stale|lost"),
    (_take_from_earlier_terms, a_primary_wakes_up_and_is_asked_to_count, "lost"),
    (_serve_before_the_promise_is_over, only_the_keeper_does_not_hear_the_primary, "lost"),
    (_forget_what_was_answered, an_answer_is_lost_and_the_request_repeated, "doubled"),
    (_repeat_under_a_new_number, an_answer_is_lost_and_the_request_repeated, "doubled"),
]


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("mutate", "situation", "what"), MUTATIONS, ids=[one[0].__name__.strip("_") for one in MUTATIONS]
)
def test_a_missing_rule_is_noticed(
    mutate: Callable[[pytest.MonkeyPatch], None],
    situation: Callable[[pytest.MonkeyPatch], None],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(BrokenPromise, match=what):
        situation(monkeypatch)


def _pair(patch: pytest.MonkeyPatch) -> tuple[World, Asker, Process, Process]:
    """A primary and a backup that are in step, and somebody who has declared the key."""
    world = World(0, patch)
    world.run_until(world.calm)
    asker = Asker(world)
    first = world.primary()
    asker.declare(first)
    return world, asker, first, world.processes[world.succession.assignment.backup]


def _taken_over(patch: pytest.MonkeyPatch) -> tuple[World, Asker, Process, Process]:
    """The primary was frozen, the backup has taken over and has counted; the first one still sleeps."""
    world, asker, first, second = _pair(patch)
    first.freeze()
    world.run_until(lambda: second.replica.serving)
    world.run_until(asker.push(second).done)
    world.unheard.add(first.name)  # nobody tells it
    return world, asker, first, second


def _check(asker: Asker, process: Process, may_be_silent: bool = False) -> None:
    """Whatever was acknowledged is read, and nothing more than was asked for."""
    at_least, at_most = asker.acknowledged, asker.counted
    value = asker.read(process)
    if value is None:
        assert may_be_silent, f"{process.name} does not answer"
    elif value < at_least:
        raise BrokenPromise(f"lost or stale: {process.name} says {value:.0f}, {at_least} were acknowledged")
    elif value > at_most:
        raise BrokenPromise(f"doubled: {process.name} says {value:.0f}, {at_most} were asked for")
