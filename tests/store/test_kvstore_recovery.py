"""Servers without a backup: they come back from the last snapshot, in which values and tasks agree."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from kvstore_fleets import PATIENCE_S, eventually, free_address, real_fleet

from shoal.core.errors import UserError
from shoal.store.answers import NothingLeft
from shoal.store.errors import StateLost
from shoal.store.fleet import Fleet, parse_listen
from shoal.store.kvstore import KVStore
from shoal.store.operations import Task
from shoal.store.snapshot import complete, newest, next_number, prune, read_part, write_part
from shoal.store.state import Call, State
from shoal.store.terms import FleetTerms

TASKS = 9


def _do_one(store: KVStore) -> bool:
    task = store.lease("worker")
    if isinstance(task, NothingLeft):
        return False
    assert isinstance(task, Task)
    store.stage(f"task {task.number}", 0, {"sum": np.full(300, 2.0**task.number)}).result(PATIENCE_S)
    store.commit(f"task {task.number}", [0], task=task)
    return True


@pytest.mark.ranks
def test_a_killed_server_comes_back_from_the_snapshot_and_the_rest_is_done_again(tmp_path: Path) -> None:
    with real_fleet(tmp_path, servers=2, replicas=1, snapshot_s=3600.0) as fleet:
        with KVStore(tmp_path, deadline_s=PATIENCE_S) as store:
            store.declare("sum", (300,), "float64", updater="add")
            store.open(1, TASKS, "asp", ("worker",))
            for _ in range(3):
                _do_one(store)
            assert store.snapshot() == str(tmp_path / "snapshots" / "000001")
            for _ in range(2):
                _do_one(store)
            store.stage("nobody commits this", 0, {"sum": np.ones(300)}).result(PATIENCE_S)
            os.kill(fleet.primary(1)[1], signal.SIGKILL)
            went_back = 0
            while True:
                try:
                    if not _do_one(store):
                        break
                except StateLost:
                    went_back += 1
                    store.settle(abandoned=lambda transaction: True)
                    # values and tasks are of the same moment, on both servers
                    assert store.progress().committed == (0, 1, 2)
                    np.testing.assert_array_equal(store.pull("sum"), np.full(300, 7.0))
            assert went_back == 1
            assert store.progress().committed == tuple(range(TASKS))
            np.testing.assert_array_equal(store.pull("sum"), np.full(300, 2.0**TASKS - 1))
        for path in (tmp_path / "fleet.json", tmp_path / "servers.log"):
            assert path.exists()
        secret = fleet.description()[1].client_secret
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with_key = secret.encode() in _read(process)
            assert not with_key, f"the key stands in the arguments of {process}"
        assert secret not in (tmp_path / "servers.log").read_text()
        assert (tmp_path / "kvstore.key").stat().st_mode & 0o077 == 0
        said = fleet.end()
        assert "wrote" in said  # a last snapshot
        assert not (tmp_path / "fleet.json").exists()
        assert not (tmp_path / "kvstore.key").exists()
    with real_fleet(tmp_path, servers=2, snapshot_s=3600.0), KVStore(tmp_path, deadline_s=PATIENCE_S) as store:
        np.testing.assert_array_equal(store.pull("sum"), np.full(300, 2.0**TASKS - 1))
        assert store.progress().committed == tuple(range(TASKS))
        assert isinstance(store.lease("worker"), NothingLeft)


@pytest.mark.ranks
def test_who_has_nothing_under_way_is_told_by_what_comes_next(tmp_path: Path) -> None:
    with (
        real_fleet(tmp_path, servers=2, replicas=1, snapshot_s=3600.0) as fleet,
        KVStore(tmp_path, deadline_s=PATIENCE_S) as store,
    ):
        store.set("sum", np.zeros(300))
        store.snapshot()
        store.set("sum", np.ones(300))
        os.kill(fleet.primary(0)[1], signal.SIGKILL)
        link = store._mode.links[0]
        session = link._session
        before = session.generation

        def went_back() -> bool:  # a question that had been under way when the server died has the same effect
            session.post(lambda: link._probe(time.monotonic()))
            return session.generation != before

        eventually(went_back, "the client hears of it")
        with pytest.raises(StateLost):
            store.pull("sum")
        np.testing.assert_array_equal(store.pull("sum"), np.zeros(300))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.ranks
def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    for given, said in (({"servers": 0}, "1 or more"), ({"replicas": 3}, "1 or 2"), ({"snapshot_s": 0.0}, "above 0")):
        with pytest.raises(UserError, match=said):
            FleetTerms(**given)
    for listen in ("nowhere:port", "a b", "", "127.0.0.1:99999", "/tmp/x:1"):
        with pytest.raises(UserError, match="ADDRESS"):
            parse_listen(listen)
    with pytest.raises(UserError, match="by which they reach"):
        parse_listen("0.0.0.0:7070")
    assert parse_listen("127.0.0.1") == ("127.0.0.1", 0)
    assert parse_listen("tcp://10.0.0.1:7070") == ("10.0.0.1", 7070)
    assert parse_listen("[::1]:7070") == ("[::1]", 7070)
    with (
        Fleet(tmp_path / "a", FleetTerms(host="203.0.113.7")) as fleet,
        pytest.raises(UserError, match=r"203\.0\.113\.7"),
    ):
        fleet.wait_ready(PATIENCE_S)
    with Fleet(tmp_path / "b", plugins=("no_such_module",)) as fleet:
        with pytest.raises(UserError, match="no_such_module"):
            fleet.wait_ready(PATIENCE_S)
        with pytest.raises(UserError, match="used by another"):
            Fleet(tmp_path / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used"):
        Fleet(tmp_path / "file")
    assert free_address()


@pytest.mark.unit
def test_only_a_complete_and_undamaged_snapshot_is_used(tmp_path: Path) -> None:
    state = State()
    state.do(Call("enrol", {"consistency": "ssp:3", "workers": ["0", "1"]}))
    for number in (1, 2, 3, 4):
        state.do(Call("tick", {"worker": "0", "clock": number}))
        directory = tmp_path / f"{number:06d}"
        directory.mkdir()
        write_part(state, directory, 0)
        if number != 4:  # the writer of the fourth has died
            complete(directory, number, 1, {})
    found = newest(tmp_path)
    assert found is not None
    assert (found.number, found.servers, next_number(tmp_path)) == (3, 1, 5)
    assert read_part(found.path, 0).digest() != state.digest()  # it is of an earlier moment
    text = tmp_path / "000003" / "post-0.json"
    text.write_text(text.read_text().replace('"clocks"', '"clocksx"'))
    found = newest(tmp_path)
    assert found is not None
    assert found.number == 2
    tensors = tmp_path / "000002" / "post-0.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    found = newest(tmp_path)
    assert found is not None
    assert found.number == 1
    assert read_part(found.path, 0).rounds.clocks == {"0": 1, "1": 0}
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000003", "000004"]
    with pytest.raises(UserError, match="of 1 servers"):
        _fleet_over(tmp_path)


def _fleet_over(directory: Path) -> None:
    from shoal.comm.keys import RunKeys
    from shoal.store.keeper import Keeper

    whole = directory / "000005"
    whole.mkdir()
    write_part(State(), whole, 0)
    complete(whole, 5, 1, {})
    about = json.loads((whole / "complete.json").read_text())
    assert about["servers"] == 1
    Keeper(FleetTerms(servers=2), RunKeys.make().client(), None, snapshots=directory)  # type: ignore[arg-type]
    eventually(lambda: False, "nothing: this must not be reached")
