"""The parts of client and server that need neither sockets nor processes."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from shoal.comm.bulk import Message
from shoal.core.errors import ConfigError
from shoal.store.directory import Atlas, Declaration, Directory
from shoal.store.feed import PIECE_BYTES, Assembly, cut
from shoal.store.futures import after, chain, gather
from shoal.store.keys import DenseKey, SparseKey
from shoal.store.parking import Parked, Parking
from shoal.store.pending import Pending, Pendings
from shoal.store.replication import Gate
from shoal.store.rounds import Rounds
from shoal.store.state import Call, State, pack_command, pack_reply, unpack_command, unpack_reply
from shoal.store.succession import Assignment, Report, Succession

pytestmark = pytest.mark.unit

LEASE_S = 1.0


# ---- who is in charge


def _report(post: Succession, name: str, **more: Any) -> Report:
    now = post.assignment
    return Report(name, now.revision, now.generation, now.role(name), **more)


def _pair() -> Succession:
    post = Succession(LEASE_S, replicas=2)
    for name in ("a", "b"):
        post.started(name, 0.0)
    post.begin(1, "")
    for caught_up in ("", "", "b"):
        for name in ("a", "b"):
            post.heard(_report(post, name, caught_up=caught_up if name == "a" else ""), 0.1)
        post.decide(0.1)
    assert (post.assignment.primary, post.assignment.backup) == ("a", "b")
    return post


def test_a_backup_takes_over_when_the_primary_ends() -> None:
    post = _pair()
    before = post.assignment
    post.ended("a")
    post.decide(0.2)
    assert post.assignment.primary == "b"
    assert (post.assignment.backup, post.assignment.certain, post.assignment.restore) == ("", True, None)
    assert post.assignment.term == before.term + 1


def test_a_silent_primary_is_replaced_without_certainty() -> None:
    post = _pair()
    for tenth in range(2, 20):
        post.heard(_report(post, "b"), tenth / 10)
        post.decide(tenth / 10)
    assert post.assignment.primary == "b"
    assert not post.assignment.certain


def test_a_backup_is_let_go_only_while_the_primary_is_there() -> None:
    post = _pair()
    for tenth in range(2, 40):  # both are silent: nobody can say who has everything
        post.decide(tenth / 10)
    assert (post.assignment.primary, post.assignment.backup) == ("a", "b")
    post.heard(_report(post, "a", lost="b"), 4.0)
    post.decide(4.0)
    assert (post.assignment.primary, post.assignment.backup) == ("a", "")
    post.ended("a")
    post.decide(4.1)
    assert post.assignment.primary == "a"  # b was let go and has not everything
    assert post.lost


def test_a_recruit_is_a_backup_only_when_it_has_caught_up() -> None:
    post = _pair()
    post.ended("b")
    post.heard(_report(post, "a"), 0.2)
    post.decide(0.2)
    post.started("c", 0.3)
    for name in ("a", "c"):
        post.heard(_report(post, name), 0.3)
    post.decide(0.3)
    assert (post.assignment.recruit, post.assignment.backup) == ("c", "")
    post.ended("a")
    post.decide(0.4)
    assert post.lost  # what it has is not known to be all


def test_the_keepers_own_pause_is_nobodys_silence() -> None:
    post = _pair()
    post.decide(60.0)
    assert (post.assignment.primary, post.assignment.backup) == ("a", "b")


def test_a_primary_without_a_backup_is_not_replaced_for_silence() -> None:
    post = Succession(LEASE_S, replicas=1)
    post.started("a", 0.0)
    post.begin(1, "")
    for tenth in range(1, 60):
        post.decide(tenth / 10)
    assert post.assignment.primary == "a"
    assert not post.lost
    assert Assignment.from_plain(post.assignment.to_plain()) == post.assignment


# ---- what a primary waits for


def test_answers_wait_for_everyone_who_counts_in_order() -> None:
    now_s = [0.0]
    gate = Gate(0, LEASE_S, lambda: now_s[0])
    given: list[str] = []
    gate.pass_through(lambda: given.append("alone"), lambda error: None)
    assert given == ["alone"]
    gate.add("b", counts=True)
    gate.add("c", counts=False)
    gate.advance()
    gate.pass_through(lambda: given.append("first"), lambda error: None)
    gate.advance()
    gate.pass_through(lambda: given.append("second"), lambda error: given.append(str(error)))
    gate.acknowledged("b", 1, 0.0)
    assert given == ["alone", "first"]
    now_s[0] = 2.0  # the lease is over: even what everyone has is not answered
    gate.acknowledged("b", 2, 0.5)
    assert not gate.leased
    assert given == ["alone", "first"]
    gate.acknowledged("b", 2, 1.5)
    assert given == ["alone", "first", "second"]
    gate.advance()
    gate.pass_through(lambda: given.append("never"), lambda error: given.append(str(error)))
    gate.abandon(ValueError("refused"))
    assert given[-1] == "refused"
    gate.drop("b")
    assert gate.open


def test_parked_requests_go_on_when_they_can_or_when_their_time_is_up() -> None:
    state, parking, done = State(), Parking(), []
    state.do(Call("enrol", {"consistency": "bsp", "workers": ["0", "1"]}))
    state.do(Call("tick", {"worker": "0", "clock": 1}))
    for name, until_s in (("patient", 9.0), ("hasty", 1.0)):
        parking.add(
            Parked(Call("begin", {"worker": "0"}), until_s, lambda name=name: done.append(name), lambda error: None)  # type: ignore[misc]
        )
    parking.look(state, 0.5)
    assert done == []
    parking.look(state, 1.5)
    assert done == ["hasty"]
    state.do(Call("tick", {"worker": "1", "clock": 1}))
    parking.look(state, 1.6)
    assert done == ["hasty", "patient"]
    assert len(parking) == 0


# ---- rounds and keys


@pytest.mark.parametrize(("consistency", "ahead"), [("bsp", 0), ("ssp:1", 1), ("ssp:3", 3), ("asp", 50)])
def test_nobody_begins_further_ahead_than_the_bound(consistency: str, ahead: int) -> None:
    rounds = Rounds()
    rounds.enrol(consistency, ["0", "1"])
    done = 0
    while not rounds.behind("0") and done < 51:
        done += 1
        rounds.tick("0", done)
    assert done == ahead + 1
    assert max(rounds.leads) == ahead
    if ahead < 50:
        assert rounds.behind("0") == ("1",)
        rounds.tick("1", 1)
        assert rounds.behind("0") == ()
    rounds.tick("1", 1)  # said twice
    assert rounds.clocks["1"] <= 1
    assert Rounds.load(rounds.dump()).dump() == rounds.dump()
    rounds.leave("0")
    rounds.enrol(consistency, ["0"])
    assert rounds.clocks["0"] == rounds.clocks["1"]  # who comes later starts at the slowest's


def test_clients_that_read_the_same_directory_know_the_same_places() -> None:
    directory = Directory()
    early, late = Atlas(3), Atlas(3)
    for batch in range(4):
        keys = [DenseKey(f"k{batch}.{number}", (1000 * (number + 1),)) for number in range(3)]
        plain = [Declaration(key, "add").to_plain() for key in keys]
        directory.register("even", plain)
        directory.register("even", plain)  # known already
        assert len(early.learn(directory.dump())) == 3
    directory.register("even", [Declaration(SparseKey("t", 50, (4,)), "add").to_plain()])
    early.learn(directory.dump())
    late.learn(Directory.load(directory.dump()).dump())
    assert early.placement == late.placement
    assert len(early.declarations) == 13
    with pytest.raises(ConfigError, match="declared as a table"):
        directory.register("even", [Declaration(DenseKey("t", (50, 4)), "add").to_plain()])
    with pytest.raises(ConfigError, match="placed by 'even'"):
        directory.register("other", [Declaration(DenseKey("u", (5,)), "add").to_plain()])
    with pytest.raises(ConfigError, match="no declaration"):
        directory.register("even", [{"name": "v"}])


# ---- what is under way


def _pending(change: bool = True, until_s: float = 99.0) -> Pending:
    return Pending(Message({}), Future(), None, "it", 0.0, until_s, None, change)


def test_no_more_changes_are_under_way_than_can_be_repeated() -> None:
    pendings = Pendings(window=2)
    for change in (True, False, True, True, False):
        pendings.add(_pending(change))
    assert [ticket for ticket, _ in pendings.due(1, 0.0)] == [0, 1, 2]  # what comes after the third change waits, too
    assert list(pendings.due(1, 0.0)) == []
    assert pendings.take(0, attempt=9) is None  # the answer to another attempt
    assert pendings.take(0, attempt=1) is not None
    assert [ticket for ticket, _ in pendings.due(1, 1.0)] == [3, 4]
    assert pendings.waiting_since_s() == 0.0
    pendings.send_again()
    assert [ticket for ticket, _ in pendings.due(2, 2.0)] == [1, 2, 3, 4]  # all of them, in order
    assert pendings.take(3, attempt=1) is None
    assert len(pendings.take_late(100.0)) == 4
    pendings.add(_pending())
    assert len(pendings.take_all()) == 1
    assert list(pendings.due(3, 3.0)) == []


def test_futures_of_futures() -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    both = gather([first, second], sum)
    doubled = after(first, lambda value: 2 * value)
    then = chain(first, lambda value: second)
    first.set_result(3)
    assert doubled.result(0) == 6
    assert not both.done()
    assert not then.done()
    second.set_exception(ValueError("no"))
    for failed in (both, then):
        with pytest.raises(ValueError, match="no"):
            failed.result(0)
    with pytest.raises(ZeroDivisionError):
        after(first, lambda value: value // 0).result(0)
    assert gather([], len).result(0) == 0


# ---- what travels


def test_a_dump_is_put_together_from_its_pieces() -> None:
    arrays: dict[str, Any] = {
        "large": np.arange(PIECE_BYTES // 4 + 5, dtype=np.float64),
        "none": np.zeros((0, 3), np.float32),
        "one": np.array(7, np.int64),
        "bits": np.array([[True, False]]),
    }
    pieces = list(cut({"state": [1, "x"]}, arrays))
    assert len(pieces) >= 3
    assembly = Assembly()
    for number, (head, parts) in enumerate(pieces):
        assembly.take({"piece": number, **head}, parts)
    assert assembly._meta == {"state": [1, "x"]}
    for name, array in arrays.items():
        assert assembly._arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(assembly._arrays[name], array)


def test_calls_and_answers_survive_the_way() -> None:
    many = [Declaration(DenseKey(f"k{number}", (2,)), "add").to_plain() for number in range(1000)]
    for call in (Call("rounds"), Call("register", {"placement": "even", "batch": many})):
        head, arrays = pack_command(call)
        assert unpack_command(head, arrays) == call
    state = State()
    answer = state.do(Call("register", {"placement": "even", "batch": many}))
    head, arrays = pack_reply(answer)
    assert len(arrays) == 1  # too much for a head
    assert unpack_reply(head, arrays) == answer
    for call in (Call("tick", {"worker": "0"}), Call("dance"), Call("register", {"placement": "even", "batch": [1]})):
        with pytest.raises(ConfigError):
            state.do(call)
    assert State.load(*state.dump()).digest() == state.digest()
