"""Workers and agents that take part over real sockets."""

from __future__ import annotations

import os
import selectors
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from elastic_cases import agent, status
from elastic_messages import TOKEN
from elastic_process import (
    BEAT_S,
    PATIENCE_S,
    Coordination,
    control_page,
    coordination,
    eventually,
    raw_socket,
)

from shoal.comm.control import ControlPage
from shoal.core.errors import ShoalError
from shoal.core.world import View
from shoal.elastic.attendance import FitOver, RunOver
from shoal.elastic.keys import RunKeys
from shoal.elastic.link import Link
from shoal.elastic.linked import LinkedAttendance, MeetingTimeout
from shoal.elastic.messages import Ask, BadMessage, Scale, StoreAdd, StoreGet, StoreSet, decode_reply, encode
from shoal.elastic.status import AgentWord, WorkerWord
from shoal.elastic.terms import Terms

pytestmark = pytest.mark.ranks


@pytest.fixture
def run() -> Iterator[Coordination]:
    with coordination() as one:
        yield one


@pytest.fixture
def control() -> Iterator[ControlPage]:
    with control_page() as page:
        yield page


def _meet(first: LinkedAttendance, second: LinkedAttendance) -> View:
    """Two workers come into one view, in this order."""
    view = first.enter(0)
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(second.enter, 0)
        eventually(lambda: first.change_wanted(view), "a wish to change")
        both = first.next(view, broken=False)
        assert entering.result(PATIENCE_S) == both
    return both


def test_a_joiner_is_let_in_at_the_end_of_a_step(run: Coordination, control: ControlPage) -> None:
    with run.worker("w0", control) as first, run.worker("w1", control) as second:
        view = _meet(first, second)
        assert [(member.key, member.rank, member.seat) for member in view.members] == [("w0", 0, 0), ("w1", 1, 1)]
        assert view.members[0].pid == os.getpid()
        assert not first.change_wanted(view)
        assert not control.broken(view.number)


def test_a_lost_worker_breaks_the_view_at_once_and_the_other_goes_on(run: Coordination, control: ControlPage) -> None:
    broken = threading.Event()
    with run.worker("w0", control) as first, run.worker("w1", control, "x") as second, run.link() as watch:
        watch.say(agent("x"))  # "w1" is none of its workers yet
        assert watch.flush(PATIENCE_S)
        view = _meet(first, second)
        first.on_broken = broken.set
        watch.say(agent("x", ended={"w1": "killed by signal 9"}))
        assert broken.wait(PATIENCE_S)
        assert control.broken(view.number)
        after = first.next(view, broken=True)
        assert [member.key for member in after.members] == ["w0"]
        assert after.number == view.number + 1
        assert not control.broken(after.number)
        with pytest.raises(RunOver, match="killed by signal 9"):  # it lives after all: too late
            second.next(view, broken=True)


def test_a_worker_that_falls_silent_is_put_out_and_learns_it_when_it_wakes(control: ControlPage) -> None:
    with (
        coordination(Terms(lease_s=3.0)) as run,
        run.worker("w0", control, "x") as first,
        run.worker("w1", control, "x") as second,
        run.link() as watch,
    ):
        watch.say(agent("x", "w0", "w1"))
        with ThreadPoolExecutor(2) as pool:
            views = [pool.submit(one.enter, 0) for one in (first, second)]
            view = views[0].result(PATIENCE_S)
            assert views[1].result(PATIENCE_S) == view
        second.close()  # frozen, as seen from outside
        evicted = watch.wait_until(lambda word: word.evict or None, PATIENCE_S)
        assert evicted == {"w1": "gave no sign of life for 3 s"}
        assert [member.key for member in first.next(view, broken=True).members] == ["w0"]
        with run.worker("w1", control, "x") as awake, pytest.raises(RunOver, match="no sign of life"):
            awake.next(view, broken=True)


def test_who_is_told_to_go_says_so_and_the_others_stay(run: Coordination, control: ControlPage) -> None:
    with run.worker("w0", control) as first, run.worker("w1", control) as second:
        view = _meet(first, second)
        before = signal.signal(signal.SIGUSR1, lambda number, frame: second.ask_to_go())
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            eventually(lambda: first.change_wanted(view), "the word of the one that goes")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert (first.going, second.going, second.change_wanted(view)) == (False, True, True)
        second.depart(view)
        assert [member.key for member in first.next(view, broken=False).members] == ["w0"]
        assert not control.broken(view.number)


def test_scaling_down_asks_the_last_worker_to_go(run: Coordination, control: ControlPage) -> None:
    with run.link() as watch:
        watch.say(agent("home", "w0", "w1", home=True))
        with run.worker("w0", control, "home") as first, run.worker("w1", control, "home") as second:
            with ThreadPoolExecutor(2) as pool:
                views = [pool.submit(one.enter, 0) for one in (first, second)]
                view = views[0].result(PATIENCE_S)
            report = watch.request(Scale(1), PATIENCE_S)
            assert report["wanted"] == 1
            last, stays = (first, second) if view.members[1].key == "w0" else (second, first)
            eventually(lambda: last.going, "the request to go")
            assert not stays.going
            assert watch.wait_until(lambda word: word.target, PATIENCE_S) == 1


def test_a_finished_fit_is_passed_over_and_the_next_one_begins(run: Coordination, control: ControlPage) -> None:
    with run.worker("w0", control) as first, run.worker("w1", control) as late:
        view = first.enter(0)
        first.finish(0)
        with pytest.raises(FitOver):
            late.enter(0)
        with ThreadPoolExecutor(2) as pool:
            views = [pool.submit(one.enter, 1) for one in (first, late)]
            assert views[0].result(PATIENCE_S) == views[1].result(PATIENCE_S)
        assert views[0].result().number == view.number + 1
        assert views[0].result().size == 2


def test_who_is_told_to_go_at_the_door_goes(control: ControlPage) -> None:
    with coordination(Terms(lease_s=30.0, min_workers=2)) as run, run.worker("w0", control) as alone:
        with ThreadPoolExecutor(1) as pool:
            entering = pool.submit(alone.enter, 0)
            eventually(lambda: run.report()["workers"], "the worker at the door")
            alone.ask_to_go()
            with pytest.raises(RunOver, match="asked to leave"):
                entering.result(PATIENCE_S)
        assert [worker["state"] for worker in run.report()["workers"]] == ["gone"]


def test_a_wait_names_those_for_whom_it_waits(run: Coordination, control: ControlPage) -> None:
    with run.link() as watch, run.worker("w0", control, "x", start_timeout_s=5.0) as first:
        watch.say(agent("x", "w0", "w1"))
        assert watch.flush(PATIENCE_S)
        with pytest.raises(
            MeetingTimeout, match=r"process 1 on host-x, which has not come to fit\(\).*elastic.start_s"
        ):
            first.enter(0)


def test_a_wait_for_a_coordinator_that_is_away_says_so(run: Coordination, control: ControlPage) -> None:
    run.kill()
    with (
        run.worker("w0", control, start_timeout_s=0.5) as first,
        pytest.raises(MeetingTimeout, match="the coordinator"),
    ):
        first.enter(0)


def test_a_link_can_be_watched_by_a_selector(run: Coordination) -> None:
    with run.link() as link, selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        link.say(agent("x"))
        assert selector.select(PATIENCE_S)
        assert link.word == AgentWord()
        link.drain()
        link.request(Ask(), PATIENCE_S)
        assert not selector.select(0)  # an answer is no news
        with run.link() as other:
            other.request(Scale(2), PATIENCE_S)
        assert selector.select(PATIENCE_S)
        assert link.word.target == 2


def test_a_closed_link_leaves_no_thread_and_no_descriptor(run: Coordination) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = held()
    for _ in range(3):
        with run.link() as link:
            link.say(status("w0"))
            link.request(Ask(), PATIENCE_S)
            assert isinstance(link.word, WorkerWord)
        link.close()  # twice does no harm
        link.wake()
    eventually(lambda: held() == before, "the end of all that the links had")


def test_waits_end_when_the_link_is_closed() -> None:
    link = Link("tcp://127.0.0.1:9", RunKeys.make().client(), BEAT_S)  # nobody there
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(link.wait_until, lambda word: word, PATIENCE_S)
        asking = pool.submit(link.request, Ask(), PATIENCE_S)
        link.close()
        assert waiting.result(PATIENCE_S) is None
        with pytest.raises(ShoalError, match="gave no answer"):
            asking.result(PATIENCE_S)
    assert not link.alive


def test_what_the_coordinator_would_not_take_is_refused_where_it_is_said(run: Coordination) -> None:
    with run.link() as link:
        with pytest.raises(BadMessage):
            link.say(status("x" * 100))
        with pytest.raises(BadMessage):
            link.request(Scale(0), PATIENCE_S)


def test_a_repeated_request_is_carried_out_once(run: Coordination) -> None:
    with raw_socket(run.address, run.keys) as socket:
        socket.connect(run.address)
        for _ in range(3):
            socket.send(encode(StoreAdd("view-0/n", 1), TOKEN))
        assert [decode_reply(socket.recv()) for _ in range(3)] == [(1, TOKEN)] * 3


def test_a_value_that_is_waited_for_comes_as_soon_as_it_is_set(run: Coordination) -> None:
    with run.link() as asking, run.link() as setting, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asking.request, StoreGet(("view-0/a", "view-0/b"), 10.0), PATIENCE_S)
        setting.request(StoreSet("view-0/a", b"1"), PATIENCE_S)
        setting.request(StoreSet("view-0/b", b"2"), PATIENCE_S)
        assert waiting.result(PATIENCE_S) == [b"1", b"2"]
        assert asking.request(StoreGet(("view-0/c",), 0.05), PATIENCE_S) == [None]
        with pytest.raises(ShoalError, match="not of the current view"):
            setting.request(StoreSet("view-7/a", b""), PATIENCE_S)
