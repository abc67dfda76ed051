"""A coordinator that is killed and started again: nobody loses anything by it."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from elastic_cases import agent
from elastic_process import CALM, PATIENCE_S, Coordination, control_page, coordination, eventually

from shoal.comm.control import ControlPage
from shoal.elastic.journal import JOURNAL_NAME
from shoal.elastic.linked import LinkedAttendance
from shoal.elastic.messages import Scale, SetJournal
from shoal.elastic.status import Loss
from shoal.elastic.terms import Terms

pytestmark = pytest.mark.ranks


@pytest.fixture
def control() -> Iterator[ControlPage]:
    with control_page() as page:
        yield page


def _again(run: Coordination) -> None:
    run.kill()
    run.start()


def test_members_go_on_after_the_coordinator_was_killed(tmp_path: Path, control: ControlPage) -> None:
    with (
        coordination(CALM, str(tmp_path / JOURNAL_NAME)) as run,
        run.worker("w0", control, "x") as first,
        run.worker("w1", control, "x") as second,
        run.link() as watch,
        ThreadPoolExecutor(2) as pool,
    ):
        watch.say(agent("x", "w0", "w1"))
        entering = pool.submit(second.enter, 0)
        view = first.enter(0)
        assert entering.result(PATIENCE_S) == view
        first.store(view, PATIENCE_S).set("kept", b"value")
        watch.request(Scale(2), PATIENCE_S)
        address = run.address
        _again(run)
        assert run.address == address
        # the store is what it was, the members are in the view they were in, and nobody is asked to do anything
        assert second.store(view, PATIENCE_S).get("kept") == b"value"
        report = eventually(lambda: (now := run.report())["view"] == view.to_json() and now, "the view")
        assert [worker["state"] for worker in report["workers"]] == ["in", "in"]
        assert report["wanted"] == 2
        assert not control.broken(view.number)
        # a wait goes on over another death, and what happens meanwhile is not missed
        run.kill()
        waiting = pool.submit(first.next, view, True)
        watch.say(agent("x", "w0", ended={"w1": "killed by signal 9"}))
        run.start()
        after = waiting.result(PATIENCE_S)
        assert (after.number, [member.key for member in after.members]) == (view.number + 1, ["w0"])
        assert watch.wait_until(lambda word: word.lost or None, PATIENCE_S) == {"w1": Loss("killed by signal 9")}


def test_the_journal_may_be_named_later_and_only_once(tmp_path: Path, control: ControlPage) -> None:
    with coordination() as run, run.worker("w0", control) as worker, run.link() as watch:
        view = worker.enter(0)
        (tmp_path / JOURNAL_NAME).write_text('{"run": "an earlier one"}\n')
        assert watch.request(SetJournal(str(tmp_path)), PATIENCE_S) is True
        (tmp_path / "other").mkdir()
        assert watch.request(SetJournal(str(tmp_path / "other")), PATIENCE_S) is False
        path = tmp_path / JOURNAL_NAME
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert run.spec.keys.client_secret not in path.read_text()
        run.kill()
        run.spec = type(run.spec)(run.spec.keys, run.spec.terms, port=run.spec.port, journal=str(path))
        run.start()
        assert run.report()["view"] == view.to_json()


def test_without_a_journal_members_leave_the_view_and_go_on_in_the_next(control: ControlPage) -> None:
    with coordination(Terms(lease_s=3.0)) as run, run.worker("w0", control) as worker:
        view = worker.enter(0)
        _again(run)
        eventually(lambda: control.broken(view.number), "the news that the view is forgotten")
        assert worker.next(view, broken=True).number == view.number + 1


def test_a_coordinator_that_stood_still_puts_nobody_out(control: ControlPage) -> None:
    with coordination(Terms(lease_s=3.0)) as run, run.worker("w0", control) as worker:
        view = worker.enter(0)
        os.kill(run.pid, signal.SIGSTOP)
        eventually(lambda: _silent_s(worker) > 4.0, "more than a lease of silence")
        os.kill(run.pid, signal.SIGCONT)
        eventually(lambda: _silent_s(worker) < 1.0, "an answer")
        assert run.report()["view"] == view.to_json()
        assert not control.broken(view.number)


def _silent_s(worker: LinkedAttendance) -> float:
    return time.monotonic() - worker._link._answered_s


def test_ctrl_c_is_not_for_the_coordinator(control: ControlPage) -> None:
    with coordination() as run, run.worker("w0", control) as worker:
        os.kill(run.pid, signal.SIGINT)
        assert worker.enter(0).number == 1
