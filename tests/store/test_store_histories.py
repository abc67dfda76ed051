"""The laws of the store, in random histories of lease, commit, push, repeat, crash, join, restart and take-over."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from store_history import World

from shoal.core.consistency import ASP, BSP, SSP, Consistency

pytestmark = pytest.mark.unit

# what may happen, and how often in proportion
_EVENTS = {
    "work": 8, "lease": 8, "stage": 6, "commit": 8, "commit another's": 3, "repeat": 5, "push": 2, "lose": 1,
    "push, and again": 3,
    "lose with all done but the commit": 2, "a ghost commits": 3, "join": 4, "settle": 1, "forget": 1, "restart": 2,
    "take over": 1,
}  # fmt: skip
_HISTORY = st.lists(
    st.tuples(st.sampled_from([name for name, often in _EVENTS.items() for _ in range(often)]), st.integers(0, 9999)),
    min_size=30,
    max_size=70,
)
_SETTINGS = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,  # a suite that is red once in a hundred runs is of no use to anyone
    database=None,
    phases=(Phase.generate,),  # to make a long history shorter takes long: add Phase.shrink when one fails
    suppress_health_check=list(HealthCheck),
)
_MOST_ALIVE = 4


def _happen(world: World, event: str, pick: int) -> None:
    living = world.living
    one = living[pick % len(living)] if living else None
    gone = [worker for worker in world.workers.values() if not worker.alive and worker.transaction]
    if event == "restart":
        world.restart()
    elif event == "take over":
        world.take_over()
    elif event == "forget":
        world.forget(pick)
    elif event == "join" and len(living) < _MOST_ALIVE:
        world.join(f"worker {pick % 8}")
    elif event == "a ghost commits" and gone:
        world.commit(gone[pick % len(gone)], None)
    elif event == "settle" and gone:
        world.settle(gone[pick % len(gone)])
    elif one is not None:
        _happen_to(world, event, pick)


def _happen_to(world: World, event: str, pick: int) -> None:
    one = world.living[pick % len(world.living)]
    if event == "work":  # all that a worker does when nothing goes wrong
        world.lease(one)
        world.stage(one, dirt=bool(pick % 3))
        world.commit(one, None)
    elif event == "lease":
        world.lease(one)
    elif event == "stage":
        world.stage(one, dirt=bool(pick % 2))
    elif event == "commit":
        world.commit(one, None)
    elif event == "commit another's":
        world.lease(one)
        world.stage(one, dirt=False)
        world.commit(one, pick % world.tasks)
    elif event == "repeat":
        world.repeat(one, pick)
    elif event.startswith("push"):
        world.push(one, pick)
        if event != "push":
            world.repeat(one, -1)
    elif event.startswith("lose"):
        if event != "lose":
            world.lease(one)
            world.stage(one, dirt=bool(pick % 2))
        world.lose(one)


_seen: Counter[str] = Counter()


@given(
    history=_HISTORY,
    tasks=st.integers(1, 40),
    consistency=st.sampled_from([BSP(), SSP(0), SSP(1), SSP(3), ASP()]),
    crew=st.integers(1, 4),
)
@_SETTINGS
def test_whatever_happens_the_laws_hold(
    history: list[tuple[str, int]], tasks: int, consistency: Consistency, crew: int
) -> None:
    world = World(tasks, consistency, crew)
    for event, pick in history:
        _happen(world, event, pick)
        world.check()
    world.come_to_the_end(random.Random(len(history)))
    _seen.update(world.events)
    _seen["histories"] += 1


def test_the_histories_were_eventful() -> None:
    """So that the test above cannot go green because nothing happens any more in it."""
    if not _seen["histories"]:
        pytest.skip("the histories have not run in this process")
    assert _seen["commits"] > 5 * _seen["histories"]
    assert _seen["Wait"] > _seen["histories"]
    assert _seen["refused"] > _seen["histories"]
