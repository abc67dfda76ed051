"""What servers remember of a state is void once another is written there: records, staged parts, tasks and loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from kvstore_fleets import LocalFleet, eventually
from served_cases import BATCH, SAMPLES, Trainee, alone, assert_equal, undisturbed
from store_cases import Client, W, ones

from shoal.core.consistency import ASP, BSP, SSP, Consistency
from shoal.core.errors import ConfigError
from shoal.store import answers
from shoal.store import operations as ops
from shoal.store.committing import Committing
from shoal.store.eras import Eras
from shoal.store.errors import StateLost, StateReplaced, StoreRefused
from shoal.store.kvstore import KVStore
from shoal.store.shard import Shard
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.served import ServedReplica
from shoal.strategies.tasks import TaskReplica

pytestmark = pytest.mark.unit

STEPS = SAMPLES // BATCH


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with LocalFleet(2) as local:
        yield local


# ---- one server


def in_era(number: int) -> dict[str, Any]:
    return {"era": ops.Era("run", number)}


def begun(*numbers: int) -> Client:
    client = Client()
    client.declare()
    for number in numbers:
        client.done(ops.Begin, "run", number)
    return client


def test_a_change_of_an_era_that_is_over_is_refused() -> None:
    client = begun(1)
    client.done(ops.Stage, "s", 0, (ones(),), **in_era(1))
    client.done(ops.Begin, "run", 2)
    changes: list[tuple[type[ops.Change], dict[str, Any]]] = [
        (ops.Commit, {"transaction": "s", "parts": (0,)}),
        (ops.Stage, {"transaction": "s", "part": 1, "updates": (ones(),)}),
        (ops.Set, {"updates": (ones(),)}),
        (ops.SetState, {"where": W, "state": {"m": np.ones(6)}}),
        (ops.Forget, {"upto": 9}),
        (ops.Open, {"stretch": 1, "count": 1, "consistency": "bsp", "workers": ()}),
    ]
    before = client.shard.dump()[0]["board"], client.values()
    for kind, given in changes:
        assert client.refused(kind, **given, **in_era(1)).reason == "era"
    assert (client.shard.dump()[0]["board"], client.values()) == before
    client.done(ops.Set, (ones(),), **in_era(2))
    client.done(ops.Set, (ones(),))  # who names none is in none


def test_records_are_those_of_one_era() -> None:
    client = begun()
    for number in (1, 2):
        client.done(ops.Begin, "run", number)
        client.done(ops.Stage, f"s{number}", 0, (ones(),), **in_era(number))
        client.commit(f"s{number}", 0, record=b"%d" % number, **in_era(number))
    recorded = [client.shard.do(ops.Records(0, era)) for era in (None, ops.Era("run", 2), ops.Era("other", 2))]
    assert all(isinstance(one, answers.Recorded) for one in recorded)
    assert [[one.record for one in told.each()] for told in recorded] == [[b"1", b"2"], [b"2"], []]  # type: ignore[attr-defined]


def test_numbers_of_eras_grow_over_all_runs() -> None:
    client = begun(3)
    assert client.refused(ops.Begin, "run", 3).reason == "era"
    assert client.refused(ops.Begin, "other", 2).reason == "era"
    client.done(ops.Begin, "other", 4)
    client.done(ops.Set, (ones(),), **in_era(3))  # runs do not end each other's


def test_a_backup_and_a_snapshot_know_the_era() -> None:
    client = begun(1, 2)
    again = Client(Shard.load(*client.shard.dump()), "another")
    assert again.shard.digest() == client.shard.digest()
    assert again.refused(ops.Set, (ones(),), **in_era(1)).reason == "era"
    again.done(ops.Set, (ones(),), **in_era(2))


# ---- several servers


def test_whoever_is_late_changes_nothing_of_a_state_written_anew(fleet: LocalFleet) -> None:
    """Also where it has committed on the first server, and not yet on the second."""
    with (
        KVStore(fleet.wait_ready, key=fleet.keys.client()) as late,
        KVStore(fleet.wait_ready, key=fleet.keys.client()) as loader,
    ):
        late.declare("late", (640,), "float64", updater="add")
        late.era = late.renew("late")
        values = np.ones(640)
        late.stage("1/1/late/a", 0, {"late": values}).result()
        late.stage("1/1/late/b", 0, {"late": values}).result()
        first: Any = late._change(
            0, lambda c, n: ops.Commit(client=c, sequence=n, transaction="1/1/late/a", parts=(0,)), "", 5.0
        )
        first.result()
        era = loader.renew("late", late.era.number)
        assert era.number > late.era.number
        loader.era = era
        loader.set("late", 5 * values)
        with pytest.raises(StateReplaced, match="era"):
            late.commit("1/1/late/b", (0,))
        with pytest.raises(StateLost):
            late.set("late", values)
        assert loader.get("late").tolist() == [5.0] * 640
        loader.stage("2/2/late/c", 0, {"late": values}).result()
        loader.commit("2/2/late/c", (0,))  # both servers have counted the same commits
        assert loader.get("late").tolist() == [6.0] * 640


def lose(fleet: LocalFleet, post: int = 0) -> None:
    """A server dies, and all begin anew: they had no copy, and no snapshot."""
    fleet.kill(fleet.primary(post))
    eventually(lambda: fleet.primary(post) in fleet.servers, "another server")


def hear(store: KVStore) -> None:
    """The client finds out that the servers have gone back, with nothing under way."""
    link = store._mode.links[0]
    session = link._session
    before = session.generation

    def went_back() -> bool:
        session.post(lambda: link._probe(time.monotonic()))
        return session.generation != before

    eventually(went_back, "the client hears of it")


@pytest.fixture
def losing() -> Iterator[tuple[LocalFleet, KVStore]]:
    """A fleet to be hurt, and a client that works with a state there."""
    with LocalFleet(2) as local, KVStore(local.wait_ready, key=local.keys.client()) as store:
        store.declare("w", (640,), "float64", updater="add")
        store.era = store.renew("run")
        store.set("w", np.ones(640))
        yield local, store


ASKED: dict[str, Callable[[KVStore], Any]] = {
    "get": lambda store: store.get("w"),
    "set": lambda store: store.wait(store.set_many({"w": np.ones(640)})),
    "push": lambda store: store.push("w", np.ones(640)),
    "push and pull": lambda store: store.push_pull("w", np.ones(640)),
    "stage": lambda store: store.wait(store.stage("1/1/run/a", 0, {"w": np.ones(640)})),
    "refresh": lambda store: store.wait(store.refresh({"w": np.ones(640)}, {})),
    "updater state": lambda store: store.updater_state("w"),
    "set updater state": lambda store: store.set_updater_state("w", {}),
    "slices": lambda store: store.slices("w"),
}


def test_whoever_worked_with_a_lost_state_is_told_so_whatever_it_asks_for(losing: tuple[LocalFleet, KVStore]) -> None:
    """Also when it has been told before: that may have gone to something whose end nobody has looked at."""
    fleet, store = losing
    lose(fleet)
    for ask in (ASKED["get"], *ASKED.values()):
        with pytest.raises(StateLost):
            ask(store)
    with KVStore(fleet.wait_ready, key=fleet.keys.client()) as other:  # and when somebody else has declared it anew
        other.declare("w", (640,), "float64", updater="add")
        for ask in ASKED.values():
            with pytest.raises(StateLost):
                ask(store)
    store.era = store.renew("run")
    store.set("w", np.ones(640))
    assert store.get("w").tolist() == [1.0] * 640


def test_a_key_that_nobody_has_declared_is_a_mistake_in_an_era_too(losing: tuple[LocalFleet, KVStore]) -> None:
    with pytest.raises(ConfigError, match="there is no key 'v' in this store"):
        losing[1].get("v")


@pytest.mark.parametrize("name", [name for name in ASKED if name != "slices"])
def test_a_state_is_lost_between_the_look_where_a_key_lies_and_the_question(
    name: str, losing: tuple[LocalFleet, KVStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, store = losing
    right, times = store._find, list[int]()

    def late(key: str, deadline_s: float | None = None) -> Any:
        found = right(key, deadline_s)
        times.append(1)
        if len(times) == 1:
            lose(fleet)
            with pytest.raises(StateLost):  # it goes to another thread of this client
                store.progress()
        return found

    monkeypatch.setattr(store, "_find", late)
    with pytest.raises(StateLost):
        ASKED[name](store)
    store.era = None
    store.declare("w", (640,), "float64", updater="add")
    assert store.get("w").tolist() == [0.0] * 640


def test_what_lost_servers_have_told_of_their_keys_is_not_taken_for_what_there_is(
    losing: tuple[LocalFleet, KVStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, _ = losing
    with KVStore(fleet.wait_ready, key=fleet.keys.client()) as store:
        right, times = store._wait, list[int]()

        def late(future: Any, deadline_s: float | None = None) -> Any:
            told = right(future, deadline_s)
            times.append(1)
            if len(times) == 1:
                lose(fleet)
                hear(store)
            return told

        monkeypatch.setattr(store, "_wait", late)
        with pytest.raises(StateLost):
            store.get("w")
        with pytest.raises(ConfigError, match="it has no keys yet"):
            store.get("w")
        store.declare("w", (640,), "float64", updater="add")
        assert store.get("w").tolist() == [0.0] * 640


# ---- a worker, as its strategy has it


@pytest.fixture(params=[BSP(), SSP(2), ASP()], ids=str)
def consistency(request: pytest.FixtureRequest) -> Consistency:
    found: Consistency = request.param
    return found


def check_all_die_and_go_on(fleet: LocalFleet, consistency: Consistency, times: int = 2) -> None:
    """Steps that were done after the checkpoint are done again to what it holds, as often as that happens."""
    expected = undisturbed(ParameterServer(consistency), STEPS, fleet)
    with ExitStack() as lives:
        life = lives.enter_context(Trainee(ParameterServer(consistency), fleet, view=1))
        life.do(0, 2)
        state = life.checkpoint()
        for again in range(times):
            life.do(2, 2)  # after the checkpoint: on the servers, with its record
            life.die()
            life = lives.enter_context(Trainee(ParameterServer(consistency), fleet, view=2 + again)).load(state)
        assert sum(life.do(2, STEPS - 2)) == STEPS - 2
        assert_equal(life.parameters(), expected)


def test_all_workers_die_and_the_servers_live(fleet: LocalFleet, consistency: Consistency) -> None:
    check_all_die_and_go_on(fleet, consistency)


def test_what_a_lost_worker_has_committed_is_recalled(fleet: LocalFleet) -> None:
    """Within an era, records are what they were: nobody does again what is done."""
    with Trainee(ParameterServer(), fleet) as one:
        one.do(0)
        one.replica.attach(one.replica.runtime)
        assert [record["step"] for record in one.replica.recalled] == [0]
        before = one.parameters()
        one.do(0)
        assert_equal(one.parameters(), before)


def test_a_load_that_was_broken_off_is_found_out_and_done_anew(fleet: LocalFleet) -> None:
    """A worker that has not seen its end does not take for its own what lies on the servers, whole or not."""
    with Trainee(ParameterServer(), fleet) as one:
        one.do(0, 2)
        state = one.checkpoint()
        one.do(2)
        one.replica.kv.renew(one.replica.run, one.replica.era)  # somebody has begun, and nobody knows of it
        one.replica.attach(one.replica.runtime)
        with pytest.raises(StateLost):
            one.do(3)
        one.load(state).do(2, STEPS - 2)
        assert_equal(one.parameters(), alone(STEPS), 1e-6)


def test_servers_that_are_lost_at_the_end_of_an_act_are_missed_by_whoever_saves_it(
    consistency: Consistency, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that reads the model back is told, and the group hears of it when it agrees on something next. What
    comes between, an evaluation and a checkpoint, is not held against the user."""
    with LocalFleet(2) as fleet, Trainee(ParameterServer(consistency), fleet) as one:
        one.do(0, 2)
        state, right = one.checkpoint(), ServedReplica.pull

        def hurt(self: ServedReplica) -> None:
            lose(fleet)
            right(self)

        with monkeypatch.context() as hurting:
            hurting.setattr(ServedReplica, "pull", hurt)
            one.do(2)
        assert one.replica.lost
        with pytest.raises(StateLost):
            one.checkpoint()
        one.load(state).do(2, STEPS - 2)
        assert_equal(one.parameters(), alone(STEPS), 1e-6)


@pytest.mark.parametrize("lost_in", ["_declare", "upload"])
def test_servers_that_are_lost_while_a_state_is_written(lost_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin empty: all of it is written anew."""
    with LocalFleet(2) as fleet, Trainee(ParameterServer(), fleet) as one:
        one.do(0, 2)
        state, right, times = one.checkpoint(), getattr(ServedReplica, lost_in), []

        def hurt(self: ServedReplica) -> None:
            times.append(1)
            if len(times) == 1:
                lose(fleet, 1)
            right(self)

        monkeypatch.setattr(ServedReplica, lost_in, hurt)
        one.load(state).do(2, STEPS - 2)
        assert len(times) > 1
        assert_equal(one.parameters(), alone(STEPS), 1e-6)


# ---- broken on purpose


def all_records_count(self: Committing, operation: ops.Records) -> answers.Answer:
    return answers.Recorded.of(0, self._after(operation.after))


def no_era_is_over(self: Eras, change: ops.Change) -> None:
    return None


def stretches_outlive_their_state(self: TaskReplica, work: Any) -> Any:
    self.kv.era, kept = ops.Era(self.run, self.era), self.era
    self.era = 1
    try:
        return right_act(self, work)
    finally:
        self.era = kept


right_act = TaskReplica.act


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("owner", "name", "fault", "consistency"),
    [(Committing, "records", all_records_count, BSP()), (TaskReplica, "act", stretches_outlive_their_state, SSP(2))],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable[..., Any], consistency: Consistency
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with LocalFleet(2) as fleet, pytest.raises((AssertionError, StoreRefused)):
        check_all_die_and_go_on(fleet, consistency)


@pytest.mark.mutation
def test_a_server_that_takes_what_is_late_is_seen(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eras, "check", no_era_is_over)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_whoever_is_late_changes_nothing_of_a_state_written_anew(fleet)
