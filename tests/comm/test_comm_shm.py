"""What only the shared-memory backend promises: no hazards between steps, nothing left behind."""

from __future__ import annotations

import gc
import mmap
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from comm_ranks import await_all, join, tell

from shoal.comm.control import ControlPage
from shoal.comm.group import BucketSpec
from shoal.comm.shm import ShmGroup
from shoal.comm.shm_reducer import share
from shoal.comm.shm_segment import WINDOW_BYTES
from shoal.core.world import Member, View
from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness


@pytest.mark.unit
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("numel", [0, 1, 15, 16, 17, 1000, 4097])
def test_shares_cover_everything_once(numel: int, size: int) -> None:
    covered = [at for rank in range(size) for at in range(*share(numel, rank, size))]
    assert covered == list(range(numel))


def hurried_steps(session: Session, steps: int) -> int:
    """Ranks that are fast and slow by turns: a hazard between steps shows as a wrong integer."""
    rank, size = session.world.rank, session.world.size
    group = join(session, "shm")
    numels = (5, 3000, 17, 40_000)
    reducer = group.reducer([BucketSpec(n, torch.float32, divided=i != 2) for i, n in enumerate(numels)], 2)
    # a delay is part of what is tested, not synchronisation
    dice = random.Random(rank)
    checked = 0
    for step in range(1, steps + 1):
        # powers of two: dividing is exact. The total differs from step to step, so a stale weight shows.
        total = 2.0 ** (step % 5)
        weight = total if rank == step % size else 0.0
        slowness = dice.choice([0, 0, 0, 1e-4, 1e-3])
        reducer.open(weight)
        for bucket in dice.sample(range(4), 4):
            reducer.buffers[bucket].fill_(step * 16 + rank * 2 + bucket)
            if slowness:
                time.sleep(dice.random() * slowness)
            reducer.ready(bucket)
        facts = reducer.finish(torch.tensor([rank + step, weight], dtype=torch.float64))
        if dice.random() < 0.1:
            time.sleep(slowness)
        assert facts.tolist() == [[r + step, total if r == step % size else 0.0] for r in range(size)]
        for bucket, buffer in enumerate(reducer.buffers):
            whole = float(sum(step * 16 + r * 2 + bucket for r in range(size)))
            expected = whole if bucket == 2 else whole / total
            assert buffer.eq(expected).all(), (step, bucket, expected, buffer[:3])
            checked += 1
    group.close()
    return checked


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "steps"), [(2, 600), (3, 400), (4, 250)])
def test_no_hazard_between_steps(ranks: RankHarness, size: int, steps: int) -> None:
    assert ranks.run(size, hurried_steps, steps) == [steps * 4] * size


def hurried_collectives(session: Session, rounds: int) -> int:
    rank, size = session.world.rank, session.world.size
    group = join(session, "shm")
    dice, common = random.Random(rank), random.Random(5)
    for number in range(rounds):
        kind, numel = common.choice(["sum", "copy", "bytes"]), common.choice([1, 900, 30_000])
        if dice.random() < 0.2:
            time.sleep(dice.random() * 5e-4)
        if kind == "sum":
            tensor = torch.full((numel,), float(rank + number))
            group.all_reduce(tensor, "a sum")
            assert tensor.eq(sum(r + number for r in range(size))).all()
        elif kind == "copy":
            tensor = torch.full((numel,), rank + number)
            group.broadcast(tensor, number % size, "a copy")
            assert tensor.eq(number % size + number).all()
        else:
            payload = bytes([(rank + number) % 251]) * (numel + rank)
            expected = [bytes([(r + number) % 251]) * (numel + r) for r in range(size)]
            assert group.gather_bytes(payload, "payloads") == expected
    group.close()
    return rounds


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 4])
def test_no_hazard_between_rounds(ranks: RankHarness, size: int) -> None:
    assert ranks.run(size, hurried_collectives, 500) == [500] * size


# --- memory


def alone(control: ControlPage, number: int = 1) -> ShmGroup:
    member = Member("worker", 0, "host", os.getpid(), "0", "agent", 0)
    return ShmGroup(View(number, (member,)), member, control, 1.0)


def aligned_buffers(session: Session) -> list[int]:
    group = join(session, "shm")
    reducer = group.reducer([BucketSpec(n, torch.float32) for n in (1, 3, 17, 100)], 1)
    return [buffer.data_ptr() % 64 for buffer in reducer.buffers]


@pytest.mark.ranks
def test_buffers_start_on_cache_lines(ranks: RankHarness) -> None:
    assert ranks.run(2, aligned_buffers) == [[0] * 4] * 2


@pytest.mark.unit
def test_memory_goes_back_when_the_last_tensor_is_gone() -> None:
    control = ControlPage()
    used_at_first = os.fstat(control.fd).st_blocks
    group = alone(control)
    reducer = group.reducer([BucketSpec(1_000_000, torch.float32)], 0)
    reducer.open(1.0)
    reducer.buffers[0].fill_(3.0)
    reducer.ready(0)
    reducer.finish(torch.zeros(0, dtype=torch.float64))
    kept = reducer.buffers[0][500_000:]
    assert os.fstat(control.fd).st_blocks * 512 > 4_000_000
    group.close()
    del group, reducer
    gc.collect()
    assert kept.eq(3.0).all()
    assert os.fstat(control.fd).st_blocks * 512 > 4_000_000
    del kept
    gc.collect()
    assert (os.fstat(control.fd).st_blocks - used_at_first) * 512 <= 4 * mmap.PAGESIZE
    control.close()


@pytest.mark.unit
def test_memory_is_kept_while_a_peer_may_still_read_it() -> None:
    control = ControlPage()
    group = alone(control)
    reducer = group.reducer([BucketSpec(1_000_000, torch.float32)], 0)
    reducer.open(1.0)  # and no finish: a peer may be in the middle of its share
    reducer.buffers[0].fill_(3.0)
    group.close()
    del group, reducer
    gc.collect()
    assert os.fstat(control.fd).st_blocks * 512 > 4_000_000
    control.close()


@pytest.mark.unit
def test_groups_do_not_share_memory_with_each_other_or_the_control_page() -> None:
    control = ControlPage()
    for number in range(1, 4):
        group = alone(control, number)
        group.barrier("a word is written")
        group.close()
    assert os.fstat(control.fd).st_size > 3 * WINDOW_BYTES
    assert not control.aborted
    assert control.progress(0) == (0, "start")
    control.close()


def leave_in_the_middle(session: Session) -> None:
    group = join(session, "shm")
    group.reducer([BucketSpec(100_000, torch.float32)], 0)
    group.barrier("the start")
    mapped = Path("/proc/self/maps").read_text()
    assert "/memfd:" in mapped
    assert "/dev/shm/" not in mapped
    tell(session)
    signal.pause()


@pytest.mark.ranks
def test_nothing_has_a_name_in_dev_shm(ranks: RankHarness) -> None:
    """Nor is anything left there by ranks that are killed: that is what every test is held to."""
    with ranks.start(2, leave_in_the_middle) as run:
        await_all(run.control, 2)
        for rank in range(2):
            run.signal(rank, signal.SIGKILL)


@pytest.mark.unit
def test_a_group_of_one_does_not_need_peers() -> None:
    control = ControlPage()
    group = alone(control)
    tensor = torch.arange(5)
    group.all_reduce(tensor, "a sum")
    assert np.array_equal(tensor.numpy(), np.arange(5))
    assert group.gather_bytes(b"abc", "payloads") == [b"abc"]
    group.close()
    control.close()
