"""Parameter servers as part of a run: started, found, watched, started again, and gone with it. With real processes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from launches import PRELUDE, TAKING_PART, KeptNursery, Launches, eventually

from shoal.comm.keys import RunKeys
from shoal.core.config import Config, ElasticSettings
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.events import Fault
from shoal.core.world import Member, World
from shoal.elastic.fleet import access_to, fleet_key, told
from shoal.elastic.link import Link
from shoal.elastic.messages import StoreGet
from shoal.launch.failure import Casualty, account_of_end
from shoal.launch.fleet import LaunchedFleet, Means
from shoal.launch.interfaces import Endpoint
from shoal.launch.job import Job, Outcome
from shoal.launch.nursery import Nursery
from shoal.launch.record import Record
from shoal.launch.servers import Servers, wish
from shoal.launch.serving import ServerChild, search_path_of
from shoal.launch.session import Session
from shoal.launch.telling import Teller
from shoal.store.access import FleetAccess
from shoal.store.description import FleetDescription
from shoal.store.keeper import FleetTerms
from shoal.store.spec import ServerSpec
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.base import Needs
from shoal.strategies.single import Single
from shoal.testing.ranks import RankHarness
from shoal.train.fleet import idle_servers, reach_fleet, servers_of

HOST = socket.gethostname()

# `use(kv, step, rank)` is called in every step, with a client of the servers
WITH_SERVERS = """
import json
import numpy as np
from pathlib import Path
from shoal.launch.servers import wish
from shoal.store.errors import StateLost
from shoal.store.kvstore import KVStore

kv, access = None, None

def events(kind):
    lines = (Path(RUN) / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind and event.get("role") == "server"]

def pids(rank):
    return [event["pid"] for event in events("member_joined") if event["rank"] == rank]

def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError("it did not come true")
        time.sleep(0.005)
    return value

def at_step(view, me, step):
    global kv, access
    if kv is None:
        asked = wish(0, SERVERS, REPLICAS, "auto")
        session.report({**asked, "terms": {**asked["terms"], **TERMS}})
        access = attendance.fleet(0)
        kv = KVStore(access, key=access.keys, deadline_s=60.0)
    use(kv, step, me.rank)
"""


class ServerRuns:
    def __init__(self, launches: Launches, capture: pytest.CaptureFixture[str]) -> None:
        self._launches, self._capture = launches, capture
        self.run_dir = launches.directory / "run"

    def run(
        self,
        use: str,
        steps: int,
        servers: int = 2,
        replicas: int = 1,
        workers: int = 1,
        fleet: dict[str, float] | None = None,
        **terms: Any,
    ) -> Outcome:
        """Run workers that call `use` (its body is given) at each of so many steps."""
        head = f"RUN, SERVERS, REPLICAS, TERMS = {str(self.run_dir)!r}, {servers}, {replicas}, {fleet or {}}\n"
        body = (
            f"{WITH_SERVERS}\ndef use(kv, step, rank):\n{textwrap.indent(textwrap.dedent(use), '    ')}\n"
            f"take_part(at_step, lambda view, step: step >= {steps}, RUN)\nkv.close()\n"
        )
        job = {"elastic": ElasticSettings(**{"lease_s": 20.0, **terms})}
        outcome = self._launches.run(head + body, workers, prelude=PRELUDE + TAKING_PART, **job)
        self.out, self.err = self._capture.readouterr()
        return outcome

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.run_dir / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def servers(self) -> list[dict[str, Any]]:
        return [event for event in self.events("member_joined") if event["role"] == "server"]


@pytest.fixture
def runs(launches: Launches, capfd: pytest.CaptureFixture[str]) -> ServerRuns:
    return ServerRuns(launches, capfd)


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


# ---- real runs


@pytest.mark.ranks
def test_workers_find_the_servers_and_nobody_else_can(runs: ServerRuns) -> None:
    outcome = runs.run(
        """
        import psutil
        if step == 0 and rank == 0:
            kv.declare("w", (4096,), updater="add")
            kv.push("w", np.ones(4096, np.float32))
            until(lambda: len(events("member_joined")) == 2)
            secret = access.keys.client_secret
            for event in events("member_joined"):
                process = psutil.Process(event["pid"])
                ports = [one.laddr for one in process.net_connections("inet") if one.status == "LISTEN"]
                assert ports and all(one.ip == "127.0.0.1" for one in ports), ports
                assert secret not in " ".join(process.cmdline()) and secret not in str(process.environ())
            files = [path for path in Path(RUN).rglob("*") if path.is_file() and path.name != "key"]
            assert files and not any(secret in path.read_text(errors="replace") for path in files)
            Path(RUN, "done").touch()
        until(Path(RUN, "done").exists)
        if step == 0:
            assert (kv.pull("w") == 1).all()
            print("read by", rank, "at", len(access().servers), flush=True)
        """,
        steps=1,
        workers=2,
    )
    assert (outcome.status, outcome.error) == (0, None), runs.err
    said = runs.out + (runs.run_dir / "logs" / "worker-1.log").read_text()
    assert "read by 0 at 2" in said
    assert "read by 1 at 2" in said
    joined = runs.servers()
    assert [event["rank"] for event in joined] in ([0, 1], [1, 0])
    assert all(event["host"] == HOST for event in joined)
    assert (runs.run_dir / "logs" / "server-0.log").exists()
    assert (runs.run_dir / "logs" / "server-1.log").exists()
    assert runs.events("member_lost") == []
    assert outcome.summary is not None
    assert outcome.summary.get("faults", []) == []
    eventually(lambda: all(_gone(event["pid"]) for event in joined), 60.0)


@pytest.mark.ranks
def test_a_killed_server_is_started_again_and_named(runs: ServerRuns) -> None:
    outcome = runs.run(
        """
        if step == 3:
            kv.set("w", np.ones(100, np.float32))
            (pid,) = until(lambda: pids(0))
            os.kill(pid, signal.SIGKILL)
            until(lambda: len(pids(0)) == 2)
            try:
                kv.set("w", np.ones(100, np.float32))
            except StateLost:  # it had no copy
                kv.set("w", np.ones(100, np.float32))
            assert (kv.get("w") == 1).all()
            print("goes on", flush=True)
        """,
        steps=5,
        servers=1,
    )
    assert (outcome.status, outcome.error) == (0, None), runs.err
    assert "goes on" in runs.out
    assert f"shoal: server 0 on {HOST} was lost at step 3: killed by signal 9 (SIGKILL)" in runs.err
    assert "shoal: it is started again (1 of 10)\n" in runs.err
    (fault,) = runs.events("fault")
    assert (fault["member"], fault["at_step"]) == (f"server 0 on {HOST}", 3)
    assert (fault["cause"], fault["phase"]) == ("killed by signal 9 (SIGKILL)", "serving")
    (lost,) = runs.events("member_lost")
    first, second = runs.servers()
    assert (lost["role"], lost["rank"], lost["pid"]) == ("server", 0, first["pid"])
    assert outcome.summary is not None
    (entry,) = outcome.summary["faults"]
    assert entry["member"] == f"server 0 on {HOST}"
    assert entry["resumed_s"] > 0
    eventually(lambda: _gone(second["pid"]), 60.0)


@pytest.mark.ranks
def test_with_a_copy_nothing_is_lost(runs: ServerRuns) -> None:
    outcome = runs.run(
        """
        if step == 0:
            kv.declare("w", (100,), updater="add")
            until(lambda: len(pids(0)) == 2)
        kv.push("w", np.ones(100, np.float32))
        if step == 5:
            os.kill(pids(0)[0], signal.SIGKILL)
            until(lambda: len(pids(0)) == 3)
        if step == 9:
            print("counted", set(kv.get("w").tolist()), flush=True)
        """,
        steps=10,
        servers=1,
        replicas=2,
        fleet={"lease_s": 5.0},  # on a busy machine a copy is silent for longer than usual
    )
    assert (outcome.status, outcome.error) == (0, None), runs.err
    assert "counted {10.0}" in runs.out
    assert "shoal: its copy goes on, and another is started (1 of 10)\n" in runs.err
    assert (runs.run_dir / "logs" / "server-0b.log").exists()


@pytest.mark.ranks
def test_interrupted_workers_have_their_servers_to_the_end(runs: ServerRuns) -> None:
    outcome = runs.run(
        f"""
        kv.set("w", np.full(10, step, np.float32))
        if step == 1:
            os.kill({os.getpid()}, signal.SIGINT)
            until(lambda: control.stop_requested)
            kv.push("w", np.ones(10, np.float32))
            print("saved", kv.get("w")[0], flush=True)
        """,
        steps=2,
    )
    assert "saved 1.0" in runs.out
    assert "shoal: stopping after this step: saving" in runs.err
    assert outcome.summary is not None
    assert outcome.summary.get("faults", []) == []
    eventually(lambda: all(_gone(event["pid"]) for event in runs.servers()), 60.0)


@pytest.mark.ranks
def test_a_run_ends_when_no_more_servers_may_be_started(runs: ServerRuns) -> None:
    outcome = runs.run(
        """
        until(lambda: pids(0))
        os.kill(pids(0)[0], signal.SIGKILL)
        time.sleep(60)
        """,
        steps=5,
        servers=1,
        max_restarts=0,
    )
    assert outcome.status == 1
    assert "server 0 cannot be replaced, since elastic.max_restarts=0 is used up: the run ends" in runs.err
    assert outcome.summary is not None
    assert outcome.summary["status"] == "failed"
    (entry,) = outcome.summary["faults"]
    assert entry["member"] == f"server 0 on {HOST}"
    assert entry["resumed_s"] is None
    eventually(lambda: all(_gone(event["pid"]) for event in runs.servers()), 60.0)


@pytest.mark.ranks
def test_a_server_that_cannot_begin_ends_the_run_with_its_reason(
    runs: ServerRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.launch.fleet.PLUGINS", ("no_such_plugin",))
    outcome = runs.run("kv.set('w', np.ones(3))", steps=1)
    assert outcome.status == 1
    assert "a server cannot begin: a server cannot import 'no_such_plugin'" in runs.err


@pytest.mark.ranks
def test_servers_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    head = f"RUN, SERVERS, REPLICAS, TERMS = {str(tmp_path / 'run')!r}, 2, 1, {{}}\n"
    use = "\ndef use(kv, step, rank):\n    kv.set('w', np.ones(3))\n    time.sleep(60)\n"
    last = "take_part(at_step, lambda view, step: False, RUN)\n"
    script.write_text(PRELUDE + TAKING_PART + head + WITH_SERVERS + use + last)
    code = (
        "import sys\nsys.argv = ['-m']\n"  # as the command: without torch
        "import shoal.launch.fleet\nfrom shoal.launch.job import Job\nfrom shoal.launch.launcher import Launcher\n"
        "from shoal.launch.nursery import Nursery\n"
        "shoal.launch.fleet.PLUGINS = ()\n"
        "nursery = Nursery(['shoal.launch.worker', 'shoal.launch.serving'])\n"
        f"Launcher(Job(1, {str(script)!r}, threads=1), nursery).run()\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    try:
        events = tmp_path / "run" / "events.jsonl"

        def servers() -> list[int]:
            lines = events.read_text().splitlines() if events.exists() else []
            return [event["pid"] for event in map(json.loads, lines) if event.get("role") == "server"]

        pids = eventually(lambda: found if len(found := servers()) == 2 else None, 300.0)
        assert not any(_gone(pid) for pid in pids)
    finally:
        launcher.kill()
        launcher.wait()
    eventually(lambda: all(_gone(pid) for pid in pids), 60.0)


TRAINING = """
import torch, shoal
from torch import nn
from served import Served

inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
shoal.Trainer(
    model=nn.Linear(4, 2), loss=nn.MSELoss(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    train=(inputs, inputs[:, :2]), global_batch=8, epochs=1, strategy=Served(), run_dir="run",
).fit()
"""
SERVED = """
import numpy as np
from shoal.store.kvstore import KVStore
from shoal.strategies.base import Needs
from shoal.strategies.single import Single

class Served(Single):
    name = "served"
    needs = Needs(max_workers=1, servers=True)

    def bind(self, program, runtime):
        self.kv = KVStore(runtime.fleet, key=runtime.fleet.keys)
        options = {"optimizer": "beside:Mine", "settings": {"lr": 1.0, "maximize": True}}
        self.kv.declare("steps", (1,), updater="torch", options=options)
        return super().bind(program, runtime)

    def step(self, replica, work):
        self.kv.push("steps", np.ones(1, np.float32))
        return super().step(replica, work)

    def close(self, replica):
        print("pushed", self.kv.get("steps"), "to", len(self.kv_servers()), flush=True)
        self.kv.close()

    def kv_servers(self):
        from shoal.launch.session import current
        return current().attendance.fleet(0)().servers
"""


class _Borrowed:
    """The zygote of the ranks, which has imported everything: it outlives a launch."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nursery, name)


@pytest.mark.ranks
@pytest.mark.parametrize(("flag", "number"), [({}, 1), ({"servers": 2, "server.replicas": 1}, 2)])
def test_a_strategy_gets_the_servers_that_it_needs(
    ranks: RankHarness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    flag: dict[str, int],
    number: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    launches = Launches(tmp_path, cast(KeptNursery, _Borrowed(ranks._ready())))
    (tmp_path / "served.py").write_text(SERVED)
    (tmp_path / "beside.py").write_text("import torch\nclass Mine(torch.optim.SGD): pass\n")
    outcome = launches.run(TRAINING, prelude="", layers=(("the command line", flag),))
    out, err = capfd.readouterr()
    assert (outcome.status, outcome.error) == (0, None), err
    assert f"pushed [4.] to {number}" in out
    assert outcome.summary is not None
    assert (outcome.summary["servers"], outcome.summary["steps"]) == (number, 4)


# ---- parts


class _Served(Single):
    name = "served"
    needs = Needs(max_workers=1, servers=True)


def _config(**settings: Any) -> Config:
    return Config(global_batch=8, epochs=1, **settings)


def test_a_strategy_that_needs_servers_has_at_least_one_and_others_none() -> None:
    assert servers_of(_config(), _Served()) == 1
    assert servers_of(_config(servers=3), _Served()) == 3
    assert servers_of(_config(servers=3), AllReduce()) == 0
    assert idle_servers(_config(servers=3), _Served()) is None
    assert idle_servers(_config(), AllReduce()) is None
    words = idle_servers(_config(servers=3), AllReduce())
    assert words == "servers=3 has no effect: strategy allreduce has no use for servers, and none is started"


def _session(size: int = 1) -> Session:
    from shoal.comm.control import ControlPage

    return Session(World(0, size), ControlPage())


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_servers_that_were_given_are_used(closing: contextlib.ExitStack) -> None:
    session = _session(2)
    closing.callback(session.control.close)
    session.fleet = FleetAccess(lambda: FleetDescription((("127.0.0.1:1",),)), RunKeys.make().client())
    assert reach_fleet(session, _config(), _Served(), 0, closing) is session.fleet
    assert reach_fleet(session, _config(), AllReduce(), 0, closing) is None


def test_ranks_without_a_launcher_must_be_given_servers(closing: contextlib.ExitStack) -> None:
    session = _session(2)
    closing.callback(session.control.close)
    with pytest.raises(ConfigError, match=r"strategy served needs servers, which `shoal train` or fit\(workers=N\)"):
        reach_fleet(session, _config(), _Served(), 0, closing)


@pytest.mark.ranks
def test_a_process_on_its_own_has_servers_of_its_own(
    closing: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from shoal.store.kvstore import KVStore

    monkeypatch.setattr("shoal.launch.serving.PLUGINS", ())  # they would import torch
    session = _session()
    closing.callback(session.control.close)
    with contextlib.ExitStack() as run:
        access = reach_fleet(session, _config(), _Served(), 0, run)
        assert access is not None
        with KVStore(access, key=access.keys) as kv:
            kv.set("w", np.arange(3.0))
            assert kv.get("w").tolist() == [0.0, 1.0, 2.0]


class _Coordinator:
    """A link to a coordinator whose store holds this."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values, self.asked = values, 0

    def request(self, operation: StoreGet, timeout_s: float) -> list[bytes | None]:
        self.asked += 1
        return [self.values.get(key) for key in operation.keys]


def test_where_servers_are_is_asked_anew_each_time() -> None:
    keys = RunKeys.make().client()
    values: dict[str, bytes] = {}
    access = access_to(cast(Link, _Coordinator(values)), keys, 2, timeout_s=5.0)
    for epoch in (1, 2):
        description = FleetDescription(((f"10.0.0.1:{epoch}",),), epoch=epoch)
        entry = told(2, description)
        assert entry.key == fleet_key(2)
        assert keys.client_secret.encode() not in entry.value
        values[entry.key] = entry.value
        assert access() == description
    assert access.keys is keys


def test_servers_that_do_not_come_are_waited_for_no_longer_than_allowed() -> None:
    link = _Coordinator({})
    access = access_to(cast(Link, link), RunKeys.make().client(), 0, timeout_s=0.05)
    with pytest.raises(ShoalError, match=r"for the servers that the launcher starts: see server-0.log"):
        access()
    assert link.asked > 0


def test_modules_beside_the_script_are_found_by_servers_too(tmp_path: Path) -> None:
    assert search_path_of(Job(1, str(tmp_path / "train.py"))) == (str(tmp_path),)
    assert set(search_path_of(Job(1, payload=lambda: None))) >= {path for path in sys.path if path}


@pytest.mark.parametrize(("listen", "host"), [(None, "127.0.0.1"), (Endpoint("10.1.2.3", 0), "10.1.2.3")])
def test_servers_listen_where_other_hosts_join_and_else_on_loopback(listen: Endpoint | None, host: str) -> None:
    class Coordination:
        keys = RunKeys.make()

    class Begun(Servers):
        def _make(self, fit: int, terms: Mapping[str, Any], plugins: tuple[str, ...]) -> LaunchedFleet:
            made.append(super()._make(fit, terms, plugins))
            made[-1].begin = lambda: None  # type: ignore[method-assign]
            return made[-1]

    made: list[LaunchedFleet] = []
    with selectors.DefaultSelector() as selector:
        job = Job(1, "script.py", listen=listen)
        servers = Begun(job, cast(Nursery, None), selector, cast(Any, Coordination()), cast(Teller, None), lambda: 0)
        servers.ask(wish(1, 2, 2, "on", hang_s=7.0))
        servers.ask(wish(1, 2, 2, "on"))  # as every worker does
        servers.ask(wish(0, 2, 2, "on"))  # by one that was started late, and is about to learn that this is over
        servers.close()
    assert [fleet.terms for fleet in made] == [FleetTerms(2, 2, host, encrypt="on", hang_s=7.0)]


class _Nursery:
    def __init__(self) -> None:
        self.signals: list[tuple[int, int]] = []

    def signal(self, key: int, number: int) -> None:
        self.signals.append((key, number))


def test_a_server_that_shows_no_sign_of_life_is_put_out() -> None:
    nursery = _Nursery()
    later: list[Callable[[], None]] = []
    with selectors.DefaultSelector() as selector:
        means = Means(cast(Nursery, nursery), selector, RunKeys.make(), (), later.append)
        fleet = LaunchedFleet(0, FleetTerms(), means)
        frozen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            os.kill(frozen.pid, signal.SIGSTOP)
            eventually(lambda: Path(f"/proc/{frozen.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            spec = ServerSpec("0a.1", 0, means.keys)
            child = fleet.children["0a.1"] = ServerChild(means.nursery, spec)
            child.child, child.pid = 7, frozen.pid
            assert (fleet.pid("0a.1"), fleet.pid("0a.2")) == (frozen.pid, 0)
            fleet.kill("0a.1", "no sign of life for 61 s")
            assert nursery.signals == [], "this is for the launcher's thread"
            later.pop()()
            assert nursery.signals == [(7, signal.SIGKILL)]
            assert child.account is not None
            assert child.account.cause == "stopped by a signal (SIGSTOP), no sign of life for 61 s"
        finally:
            frozen.kill()
            frozen.communicate()


def test_a_lost_server_is_resumed_when_it_is_held_again(tmp_path: Path) -> None:
    record = Record(str(tmp_path), 0)
    for server, failed_s in ((0, 10.0), (1, 11.0), (0, 20.0)):
        casualty = Casualty(server, account_of_end(-9), 5, "serving", failed_s=failed_s)
        record.enter(casualty, Member("server", server, "here", 1))
    for server, at_s in ((1, 11.5), (0, 12.0)):
        record.served_again(server, at_s)
    assert [fault["resumed_s"] for fault in record.faults()] == [2.0, 0.5, None]
    assert Fault.kind in (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--consistency", "spp:4"], "unknown consistency 'spp': did you mean 'ssp'?"),
        (["--consistency", "ssp"], "ssp needs its staleness, a whole number of tasks: write ssp:4"),
        (["--replicas", "3"], "server.replicas=3 (from the command line): input should be less than or equal to 2"),
        (["--servers", "-1"], "servers=-1 (from the command line)"),
    ],
)
def test_options_teach(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli.main import main

    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["train", str(script), *arguments]) == 2
    assert words in capsys.readouterr().err
