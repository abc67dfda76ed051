"""The laws of membership and of the cursor, in random histories of join, leave, commit, crash and restart."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from elastic_history import Run, Worker
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.elastic.terms import Terms

pytestmark = pytest.mark.unit

# what may happen, and how often in proportion
_EVENTS = {
    "peace": 8, "step": 8, "speak": 8, "report": 3, "start": 5, "crash": 2, "crash unseen": 1, "killed in a step": 2,
    "freeze or wake": 1, "ask to go": 1, "scale": 1, "leave": 4, "finish": 1, "move on": 3, "time": 1, "restart": 2,
}  # fmt: skip
_MOST_ALIVE = 6
_HISTORY = st.lists(
    st.tuples(st.sampled_from([name for name, often in _EVENTS.items() for _ in range(often)]), st.integers(0, 9999)),
    min_size=60,
    max_size=100,
)
_SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,  # a suite that is red once in a hundred runs is of no use to anyone
    database=None,
    phases=(Phase.generate,),  # to make a long history shorter takes minutes: add Phase.shrink when one fails
    suppress_health_check=list(HealthCheck),
)


def _happen(run: Run, event: str, pick: int) -> None:
    chance = random.Random(pick)
    weights = [chance.uniform(0.1, 10.0) for _ in range(_MOST_ALIVE)]
    able = [worker for worker in run.workers.values() if worker.active]
    one = able[pick % len(able)] if able else None
    if event == "peace":
        _peace(run, 1 + pick % 6)
    elif event == "step":
        run.step(weights, applied=_MOST_ALIVE)
    elif event == "killed in a step":
        run.step(weights, applied=pick % 3)
    elif event == "report":
        run.report(chance.choice(["home", "far"]))
    elif event == "start" and len([worker for worker in run.workers.values() if worker.alive]) < _MOST_ALIVE:
        run.start(chance.choice(["home", "home", "far"]))
    elif event == "leave":
        run.leave_together()
    elif event == "finish":
        run.finish_together()
    elif event == "scale":
        run.scale(1 + pick % _MOST_ALIVE)
    elif event == "time":
        run.pass_time(chance.choice([0.1, 0.4, 1.5]) * run.terms.lease_s)
    elif event == "restart":
        run.restart()
    elif one is not None:
        _happen_to(run, one, event)


def _happen_to(run: Run, one: Worker, event: str) -> None:
    if event == "speak":
        run.speak(one.status.key)
    elif event == "move on":
        run.move_on(one.status.key)
    elif event == "ask to go":
        one.asked_to_go = True
    elif event == "freeze or wake":
        frozen = [worker for worker in run.workers.values() if worker.alive and worker.frozen]
        (frozen[0] if frozen else one).frozen = not frozen
    elif event.startswith("crash"):
        one.alive = False
        if event == "crash":
            run.report(one.status.agent)


def _peace(run: Run, beats: int) -> None:
    for _ in range(beats):
        run.beat()
        run.leave_together()
        for key, worker in run.workers.items():
            if worker.active:
                run.move_on(key)


def _comes_to_rest(run: Run) -> None:
    """Left in peace, all that are alive come together in one view, and nobody waits for ever."""
    run.scale(_MOST_ALIVE)
    run.start("home")
    _peace(run, 40)
    able = [worker for worker in run.workers.values() if worker.active]
    # one that was frozen before it ever spoke is waited for until `start_s`, which is not in this world; one that is
    # asked to go does so at the end of a step, and nobody takes steps here
    unseen = any(one.alive and one.frozen and one.status.view == 0 for one in run.workers.values())
    leaving = run.membership._roster.leavers(run.membership.view.members)
    if len(able) < run.terms.min_workers or unseen or leaving:
        return
    inside = run.together()
    assert inside, [(one.status, run.membership.word_for_worker(one.status.key)) for one in able]
    assert len(inside) == min(len(able), run.terms.max_workers or len(able)), [one.status for one in able]
    run.step([1.0] * len(able), applied=len(able))
    assert len({one.cursor for one in inside}) == 1


_seen: Counter[str] = Counter()


@given(history=_HISTORY, least=st.integers(1, 2), most=st.sampled_from([None, 3, 5]), crew=st.integers(1, 4))
@_SETTINGS
def test_whatever_happens_the_laws_hold(
    history: list[tuple[str, int]], least: int, most: int | None, crew: int
) -> None:
    run = Run(Terms(lease_s=1.2, min_workers=least, max_workers=most))
    for _ in range(crew):
        run.start("home")
    _peace(run, 3)
    for event, pick in history:
        _happen(run, event, pick)
        run.check_samples()
    _comes_to_rest(run)
    _seen.update(histories=1, views=run.membership.view.number, lost=len(run.out), commits=run.commits)


def test_the_histories_were_eventful() -> None:
    """So that the test above cannot go green because nothing happens any more in it."""
    if not _seen["histories"]:
        pytest.skip("the histories have not run in this process")
    assert _seen["views"] > 3 * _seen["histories"]
    assert _seen["lost"] > 3 * _seen["histories"]
    assert _seen["commits"] > 3 * _seen["histories"]
