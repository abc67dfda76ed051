"""A view that breaks is left at once, its survivors go on in the next one, and nothing of the old one stays."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from comm_ranks import BACKENDS, FatalStore, await_step, join, view_of
from torch._C._distributed_c10d import Store

from shoal.comm.control import ControlPage
from shoal.comm.group import BucketReducer, BucketSpec, Group
from shoal.comm.select import forget_older, make_group
from shoal.comm.shm import ShmGroup
from shoal.core.errors import PeerLost
from shoal.core.world import Member, View
from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness, RankRun

pytestmark = [pytest.mark.contract, pytest.mark.ranks]
on_all = pytest.mark.parametrize("backend", BACKENDS)
OPERATIONS = ("all_reduce", "broadcast", "gather_bytes", "reducer")
NUMEL = 200_000
TIMEOUT_S = 10.0  # of ranks whose threads are counted in the end
PROMPT_S = 25.0  # far below the timeout of 60 s, far above what a loaded machine needs


def working(number: int) -> int:
    """The step that a rank tells when it computes in view `number`."""
    return 2 * number


def left(number: int) -> int:
    """The step that a rank tells when it has left view `number`: the next is formed when all have."""
    return 2 * number + 1


def tell_step(session: Session, step: int) -> None:
    session.control.enter(session.world.rank, step, "start")


def make_reducer(group: Group) -> BucketReducer:
    return group.reducer([BucketSpec(NUMEL, torch.float32), BucketSpec(7, torch.float32)], 1)


def compute(group: Group, reducer: BucketReducer, operation: str, value: float) -> None:
    """One operation, with its result checked. All ranks give the same `value`."""
    size = group.size
    tensor = torch.full((NUMEL,), value + group.rank)
    total = size * value + size * (size - 1) / 2
    if operation == "all_reduce":
        group.all_reduce(tensor, "a sum")
        assert tensor.eq(total).all()
    elif operation == "broadcast":
        group.broadcast(tensor, size - 1, "a copy")
        assert tensor.eq(value + size - 1).all()
    elif operation == "gather_bytes":
        rows = group.gather_bytes(bytes([group.rank]) * 3000, "payloads")
        assert rows == [bytes([rank]) * 3000 for rank in range(size)]
    else:
        reducer.open(1.0)
        reducer.buffers[0].copy_(tensor)
        reducer.ready(0)
        reducer.buffers[1].fill_(value)
        reducer.ready(1)
        facts = reducer.finish(torch.tensor([float(group.rank)], dtype=torch.float64))
        assert facts.flatten().tolist() == list(range(size))
        assert torch.allclose(reducer.buffers[0], torch.tensor(total / size))
        assert torch.allclose(reducer.buffers[1], torch.tensor(value))


def compute_until_broken(group: Group, reducer: BucketReducer, operation: str) -> None:
    """Compute until the view breaks; no other end will do."""
    value = 0.0
    try:
        while True:
            value = (value + 1) % 100
            compute(group, reducer, operation, value)
    except PeerLost:
        group.close()


# --- one after the other is killed


def outlive(session: Session, backend: str) -> None:
    """Rank 4 is killed in view 1, rank 3 in view 2 and so on; rank 0 is left."""
    size = session.world.size
    for number, operation in enumerate(OPERATIONS, start=1):
        members = range(size + 1 - number)
        group = join(session, backend, 60.0, number, members)
        reducer = make_reducer(group)
        for each in OPERATIONS:
            compute(group, reducer, each, float(number))
        tell_step(session, working(number))
        compute_until_broken(group, reducer, operation)
        # the coordinator forms the next view when all have left this one
        tell_step(session, left(number))
        await_step(session.control, members[:-1], left(number))


@on_all
def test_survivors_of_a_killed_member_go_on_in_the_next_view(ranks: RankHarness, backend: str) -> None:
    size = len(OPERATIONS) + 1
    with ranks.start(size, outlive, backend) as run:
        kill_all_but_one(run, size)


def kill_all_but_one(run: RankRun, size: int) -> None:
    """One after the other, each in a view of those that are left."""
    for number in range(1, size):
        survivors = range(size - number)
        await_step(run.control, range(size + 1 - number), working(number))
        run.signal(size - number, signal.SIGKILL)
        run.wait_for(size - number)
        begun = time.monotonic()
        run.control.break_view(number)
        await_step(run.control, survivors, left(number))
        assert time.monotonic() - begun < PROMPT_S
    last = run.wait_for(0)
    assert last.code == 0, run.describe()


# --- the same member freezes and comes back, again and again


def footprint() -> tuple[int, int, int]:
    """Threads, descriptors and maps of shared memory of this process."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("memfd:shoal-run")
    return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir())), maps


def settled(before: tuple[int, int, int]) -> tuple[int, int, int]:
    """The footprint, once no more threads and descriptors are left than `before`: an operation whose message had come
    in part ends by its own timeout."""
    until = time.monotonic() + 60
    while True:
        now = footprint()
        if (now[0] <= before[0] and now[1] <= before[1]) or time.monotonic() > until:
            return now
        time.sleep(0.01)


def freeze_and_return(session: Session, backend: str, rounds: int) -> tuple[tuple[int, int, int], ...]:
    """Odd views have all ranks, and the last one freezes; even views have the others. Returns the footprint after the
    second round and after the last."""
    seat, size = session.world.rank, session.world.size
    victim, footprints = size - 1, []
    for turn in range(rounds):
        operation, number = OPERATIONS[turn % len(OPERATIONS)], 2 * turn + 1
        group = join(session, backend, TIMEOUT_S, number)
        reducer = make_reducer(group)
        for each in OPERATIONS:
            compute(group, reducer, each, float(turn))
        tell_step(session, working(number))
        if seat == victim:
            os.kill(os.getpid(), signal.SIGSTOP)
        compute_until_broken(group, reducer, operation)
        del group, reducer
        tell_step(session, left(number))
        if seat != victim:
            await_step(session.control, range(victim), left(number))
            group = join(session, backend, TIMEOUT_S, number + 1, range(victim))
            reducer = make_reducer(group)
            for each in OPERATIONS:
                compute(group, reducer, each, float(turn))
            tell_step(session, working(number + 1))
            await_step(session.control, [victim], left(number))
            for each in OPERATIONS:  # the one that has woken up wrote nothing into this view
                compute(group, reducer, each, 50.0 + turn)
            group.close()
            del group, reducer
        tell_step(session, left(number + 1))
        await_step(session.control, range(size), left(number + 1))
        if turn == 1:
            footprints.append(footprint())
    footprints.append(settled(footprints[0]))
    return tuple(footprints)


def drive(run: RankRun, size: int, rounds: int) -> None:
    """Break a view as soon as its last member is frozen, and wake that up in the view after it."""
    for turn in range(rounds):
        number, victim = 2 * turn + 1, size - 1
        await_step(run.control, range(size), working(number))
        await_stopped(run, victim)
        begun = time.monotonic()
        run.control.break_view(number)
        await_step(run.control, range(victim), working(number + 1))
        assert time.monotonic() - begun < 2 * PROMPT_S
        run.signal(victim, signal.SIGCONT)


def await_stopped(run: RankRun, rank: int) -> None:
    until = time.monotonic() + 60
    run.signal(rank, 0)  # it runs
    pid = run.ranks[rank].pid
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "tT":
        assert time.monotonic() < until
        time.sleep(0.001)


@on_all
def test_a_frozen_member_is_left_behind_and_comes_back_and_nothing_leaks(ranks: RankHarness, backend: str) -> None:
    rounds = 10
    with ranks.start(3, freeze_and_return, backend, rounds) as run:
        drive(run, 3, rounds)
        results = run.results(120.0)
    for early, late in results:
        assert late[0] <= early[0], "threads"
        assert late[1] <= early[1], "descriptors"
        assert late[2] <= early[2], "maps"


def recover_often(session: Session, rounds: int) -> tuple[tuple[int, int, int], ...]:
    """Two gloo members; views break in the middle of an operation, by the second one's doing."""
    seat, footprints = session.world.rank, []
    for number in range(1, rounds + 1):
        group = join(session, "gloo", TIMEOUT_S, number)
        reducer = make_reducer(group)
        compute(group, reducer, "reducer", 1.0)
        tell_step(session, working(number))
        if seat == 0:
            reducer.open(1.0)
            reducer.ready(0)
            reducer.ready(1)
            try:
                reducer.finish(torch.zeros(1, dtype=torch.float64))
                raise AssertionError("the other one did not come")
            except PeerLost:
                pass
        else:
            await_step(session.control, [0], working(number))  # one may be done with a sum before the other is
            session.control.break_view(number)
        group.close()
        del group, reducer
        tell_step(session, left(number))
        await_step(session.control, [0, 1], left(number))
        if number == 3:
            footprints.append(footprint())
    footprints.append(settled(footprints[0]))
    return tuple(footprints)


def test_thirty_recoveries_leave_neither_threads_nor_descriptors(ranks: RankHarness) -> None:
    for early, late in ranks.run(2, recover_often, 30, deadline_s=120.0):
        assert late[0] <= early[0], "threads"
        assert late[1] <= early[1], "descriptors"


def no_store() -> Store:
    raise AssertionError("no store is needed")


def test_the_memory_of_broken_views_is_given_back() -> None:
    control, key = ControlPage(), "0"
    members = tuple(Member("worker", rank, "host", 1, str(rank), "agent", rank) for rank in range(2))

    used = []
    for number in range(1, 51):
        group = make_group(View(number, members), key, control, "shm", no_store, 1.0)
        forget_older(View(number, members), members[0], control)
        reducer = group.reducer([BucketSpec(10_000_000, torch.float32)], 0)
        reducer.open(1.0)  # and no end of the step: this member alone cannot know who else reads its memory
        reducer.buffers[0][:1000].fill_(1.0)
        reducer.ready(0)
        used.append(os.fstat(control.fd).st_blocks * 512)
        group.close()
        del group, reducer
    assert 40_000_000 <= used[0] < 60_000_000
    assert max(used) <= used[0] + (1 << 20)
    forget_older(View(51, members[:1]), members[0], control)
    assert os.fstat(control.fd).st_blocks * 512 < 1 << 20
    control.close()


def test_who_goes_on_to_the_next_view_leaves_the_last_one_whole_for_the_slow() -> None:
    control = ControlPage()
    members = tuple(Member("worker", rank, "host", 1, str(rank), "agent", rank) for rank in range(2))
    first, last = View(1, members), View(2, members)
    quick, slow = (make_group(first, key, control, "shm", no_store, 60.0) for key in ("0", "1"))
    gone_on = threading.Event()

    def go_on() -> None:
        quick.gather_bytes(b"quick", "a word")
        quick.close()
        quick_in_the_next = make_group(last, "0", control, "shm", no_store, 60.0)
        gone_on.set()
        quick_in_the_next.gather_bytes(b"", "meeting")
        forget_older(last, members[0], control)

    assert isinstance(slow, ShmGroup)
    look = slow._all_here

    def look_late() -> bool:
        assert gone_on.wait(60.0)  # it has said that it is here, and looks when the other has long gone on
        return look()

    slow._all_here = look_late  # type: ignore[method-assign]
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        assert slow.gather_bytes(b"slow", "a word") == [b"quick", b"slow"]
        slow.close()
        make_group(last, "1", control, "shm", no_store, 60.0).gather_bytes(b"", "meeting")
    finally:
        thread.join(120.0)
    assert not thread.is_alive()
    control.close()


# --- a member that is lost while the others connect to it


def connect_to_the_lost(session: Session, number: int, timeout_s: float) -> str:
    view = view_of(session)
    store = session.attendance.store(view, timeout_s)
    if session.world.rank == 1:
        store = FatalStore(store, number)
    tell_step(session, working(1))
    before = footprint()[:2]
    try:
        make_group(view, session.attendance.key, session.control, "gloo", lambda: store, timeout_s)
        raise AssertionError("the group was made")
    except PeerLost as error:
        message = str(error)
    until = time.monotonic() + 30  # the thread that was given up ends by itself
    while footprint()[:2] != before:
        assert time.monotonic() < until, (before, footprint())
        time.sleep(0.01)
    return message


def test_a_member_that_dies_while_connecting_is_lost(ranks: RankHarness) -> None:
    with ranks.start(2, connect_to_the_lost, signal.SIGKILL, 1.0) as run:
        outcome = run.wait_for(0).outcome()
        assert outcome is not None
        assert outcome[0], run.describe()


def test_who_connects_to_a_frozen_member_is_freed_when_the_view_breaks(ranks: RankHarness) -> None:
    with ranks.start(2, connect_to_the_lost, signal.SIGSTOP, 5.0) as run:
        await_step(run.control, range(2), working(1))
        await_stopped(run, 1)
        run.control.break_view(1)
        outcome = run.wait_for(0).outcome()
        assert outcome is not None
        assert outcome[0], run.describe()
        assert "view 1 was broken" in outcome[1]
