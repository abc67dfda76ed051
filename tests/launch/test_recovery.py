"""Workers that are lost: the run goes on, says so, and others take their place. With real processes."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from launches import PRELUDE, TAKING_PART, Launches

from shoal.core.config import ElasticSettings
from shoal.launch.job import Outcome

pytestmark = pytest.mark.ranks

HOST = socket.gethostname()
# the worker to be lost is number 1, in view 1; the run is over when there are as many as at first, in a later view
ONCE_WHOLE_AGAIN = "lambda view, step: view.number > 1 and view.size == size and step > 5"


class Recovery:
    def __init__(self, launches: Launches, capture: pytest.CaptureFixture[str]) -> None:
        self._launches, self._capture = launches, capture
        self.run_dir = launches.directory / "run"

    def run(
        self, at_step: str, over: str = ONCE_WHOLE_AGAIN, workers: int = 2, victim: int = 1, **terms: Any
    ) -> Outcome:
        """Run workers of which the `victim` does `at_step` (lines of Python) at step 3 of view 1."""
        body = f"""
def at_step(view, me, step):
    if rank == {victim} and view.number == 1 and step == 3:
{"".join(f"        {line}{chr(10)}" for line in at_step.splitlines())}
last, me = take_part(at_step, {over}, {str(self.run_dir)!r})
print("rank", me.rank, "of view", last.number, "with", last.size)
"""
        job = {"elastic": ElasticSettings(**{"lease_s": 2.0, **terms})}
        outcome = self._launches.run(body, workers, prelude=PRELUDE + TAKING_PART, **job)
        self.out, self.err = self._capture.readouterr()
        return outcome

    def once_told(self, condition: str) -> str:
        """The run is over when `condition` holds and a loss was told: later there would be nobody who goes on."""
        path = str(self.run_dir / "events.jsonl")
        told = f"os.path.exists({path!r}) and 'member_lost' in open({path!r}).read()"
        return f"lambda view, step: {condition} and step > 5 and {told}"

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.run_dir / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def log(self, number: int) -> str:
        return (self.run_dir / "logs" / f"worker-{number}.log").read_text()


@pytest.fixture
def recovery(launches: Launches, capfd: pytest.CaptureFixture[str]) -> Recovery:
    return Recovery(launches, capfd)


def test_a_killed_worker_is_replaced(recovery: Recovery) -> None:
    outcome = recovery.run("print('my last words')\nos.kill(os.getpid(), signal.SIGKILL)")
    assert (outcome.status, outcome.error) == (0, None), recovery.err
    assert recovery.err == (
        f"shoal: worker 1 of 2 on {HOST} was lost at step 3 (forward): killed by signal 9 (SIGKILL); "
        "goes on with 1 worker; a replacement is started (1 of 10)\n"
    )
    (fault,) = recovery.events("fault")
    assert fault["member"] == f"worker 1 on {HOST}"
    assert (fault["at_step"], fault["phase"], fault["cause"]) == (3, "forward", "killed by signal 9 (SIGKILL)")
    assert 0 <= fault["detected_s"] < 5
    (lost,) = recovery.events("member_lost")
    assert (lost["rank"], lost["cause"]) == (1, "killed by signal 9 (SIGKILL)")
    assert outcome.summary is not None
    (entry,) = outcome.summary["faults"]
    assert entry["resumed_s"] > entry["detected_s"]
    assert all(entry[name] == fault[name] for name in ("at_step", "member", "cause", "phase", "detected_s"))
    assert "rank 0 of view" in recovery.out
    assert "rank 1 of view" in recovery.log(2)
    assert "my last words" in recovery.log(1)


def test_the_next_first_worker_gets_the_terminal(launches: Launches, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
def at_step(view, me, step):
    if step == 3 and view.number == 1:
        print("I was first" if me.rank == 0 else "I was second")
        if me.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
last, me = take_part(at_step, lambda view, step: view.number > 1 and view.size == size and step > 5)
print("now rank", me.rank, rank)
"""
    outcome = launches.run(body, 2, prelude=PRELUDE + TAKING_PART)
    shown = capfd.readouterr()
    assert outcome.status == 0, shown.err
    assert shown.out == "I was first\nnow rank 0 1\n"


def test_without_a_budget_the_run_goes_on_with_who_is_left(recovery: Recovery) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    outcome = recovery.run(kill, recovery.once_told("view.size == 1"), max_restarts=0)
    assert outcome.status == 0, recovery.err
    assert "goes on with 1 worker; it is not replaced: elastic.max_restarts=0 is used up" in recovery.err


def test_too_few_end_the_run_and_all_faults_are_named(recovery: Recovery) -> None:
    outcome = recovery.run("os.kill(os.getpid(), signal.SIGKILL)", max_restarts=0, min_workers=2)
    assert outcome.status == 1
    assert "the run cannot go on: fewer than elastic.min_workers=2 workers are left" in recovery.err
    assert f"worker 1 on {HOST} at step 3 (forward): killed by signal 9 (SIGKILL)" in recovery.err
    assert outcome.summary is not None
    assert outcome.summary["status"] == "failed"
    assert len(outcome.summary["faults"]) == 1


def test_an_exception_may_be_survived(recovery: Recovery) -> None:
    outcome = recovery.run("raise ValueError('bad pixel')", on_error="continue")
    assert outcome.status == 0, recovery.err
    assert recovery.err.count("ValueError: bad pixel") == 1
    assert recovery.events("fault")[0]["cause"] == "ValueError: bad pixel"
    assert "a replacement is started (1 of 10)" in recovery.err


def test_an_exception_ends_the_run_otherwise(recovery: Recovery) -> None:
    outcome = recovery.run("raise ValueError('bad pixel')")
    assert outcome.status == 1
    assert recovery.err.startswith(f"shoal: worker 1 of 2 on {HOST} failed at step 3 (forward)\n\n  File ")
    assert "PeerLost" not in recovery.err
    assert recovery.events("fault")[0]["cause"] == "ValueError: bad pixel"


def test_a_worker_that_is_told_to_go_says_goodbye(recovery: Recovery) -> None:
    outcome = recovery.run("os.kill(os.getpid(), signal.SIGTERM)")
    assert outcome.status == 0, recovery.err
    assert f"shoal: worker 1 of 2 on {HOST} has left: told to go (SIGTERM); " in recovery.err
    assert "a replacement is started (1 of 100)" in recovery.err
    assert recovery.events("fault") == []
    assert recovery.events("member_lost")[0]["cause"] == "told to go (SIGTERM)"
    assert "rank 1 of view 1" in recovery.log(1), "it came to its end"


def test_a_frozen_worker_is_put_out_with_its_stack(recovery: Recovery) -> None:
    outcome = recovery.run("def frozen_here(): os.kill(os.getpid(), signal.SIGSTOP)\nfrozen_here()")
    assert outcome.status == 0, recovery.err
    (fault,) = recovery.events("fault")
    assert fault["cause"].startswith("stopped by a signal (SIGSTOP), gave no sign of life for 2 s")
    assert "frozen_here" in fault["stack"]
    assert "frozen_here" in recovery.err
    assert fault["detected_s"] >= 2
    assert outcome.summary is not None
    assert outcome.summary["faults"][0]["resumed_s"] is not None


def test_a_worker_that_hangs_is_put_out_with_its_stack(recovery: Recovery) -> None:
    hang = "def stuck_here():\n    while True: time.sleep(0.01)\nstuck_here()"
    outcome = recovery.run(hang, hang_s=3.0, hang_steps=1.0)
    assert outcome.status == 0, recovery.err
    (fault,) = recovery.events("fault")
    assert fault["cause"].startswith("no progress for ")
    assert fault["cause"].endswith(" s in forward")
    assert "stuck_here" in fault["stack"]


def test_a_killed_coordinator_is_started_again(recovery: Recovery) -> None:
    kill = f"""
import json
place = {str(recovery.run_dir / "coordinator.json")!r}
until = time.monotonic() + 120
while not os.path.exists(place) and time.monotonic() < until: time.sleep(0.005)
before = json.load(open(place))
os.kill(before["pid"], signal.SIGKILL)
while json.load(open(place)) == before and time.monotonic() < until: time.sleep(0.005)
assert json.load(open(place))["address"] == before["address"]
os.kill(os.getpid(), signal.SIGKILL)  # who leads to the next view is the new one
"""
    outcome = recovery.run(kill)
    assert outcome.status == 0, recovery.err
    assert "the coordinator was killed by signal 9 (SIGKILL) and is started again (1 of 20)" in recovery.err
    assert len(recovery.events("warning")) == 1


def test_the_key_is_its_owners_alone_and_goes_with_the_run(recovery: Recovery) -> None:
    look = f"""
import json
path = {str(recovery.run_dir / "key")!r}
until = time.monotonic() + 120
while not os.path.exists(path) and time.monotonic() < until: time.sleep(0.005)
assert os.stat(path).st_mode & 0o777 == 0o600
keys = [value for name, value in json.load(open(path)).items() if name != "address"]
for place in ("cmdline", "environ"):
    for pid in ("self", str(os.getppid())):
        text = open(f"/proc/{{pid}}/{{place}}", "rb").read().decode(errors="replace")
        assert not any(key in text for key in keys), place
os.kill(os.getpid(), signal.SIGTERM)
"""
    outcome = recovery.run(look)
    assert outcome.status == 0, recovery.err
    left = {path.name for path in recovery.run_dir.iterdir()}
    assert not left & {"key", "coordinator.json"}


def test_more_workers_are_started_when_they_are_asked_for(recovery: Recovery) -> None:
    ask = "from shoal.elastic.messages import Scale\nattendance._link.request(Scale(3), 20)"
    outcome = recovery.run(ask, "lambda view, step: view.size == 3 and step > 5")
    assert outcome.status == 0, recovery.err
    assert "of view" in recovery.log(2)
    assert not Path(recovery.run_dir / "logs" / "worker-3.log").exists()


def test_who_is_no_longer_wanted_is_not_replaced(recovery: Recovery) -> None:
    ask = "from shoal.elastic.messages import Scale\nattendance._link.request(Scale(1), 20)"
    outcome = recovery.run(ask, recovery.once_told("view.size == 1"))
    assert outcome.status == 0, recovery.err
    assert "has left: told to go, as fewer workers are wanted; goes on with 1 worker\n" in recovery.err
    assert not Path(recovery.run_dir / "logs" / "worker-2.log").exists()


def test_a_run_of_one_worker_survives_its_end(recovery: Recovery) -> None:
    over = "lambda view, step: view.number > 1 and step > 5"
    outcome = recovery.run("os.kill(os.getpid(), signal.SIGKILL)", over, workers=1, victim=0)
    assert outcome.status == 0, recovery.err
    assert "no worker is left: one is started (1 of 10), and goes on from the last checkpoint" in recovery.err
    assert "rank 0 of view 2 with 1" in recovery.out, "it has the terminal"
