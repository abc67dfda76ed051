"""What every backend of a group promises, on real processes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from comm_ranks import BACKENDS, join, place_in

from shoal.comm.group import BucketReducer, BucketSpec
from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness

pytestmark = [pytest.mark.contract, pytest.mark.ranks]

on_all = pytest.mark.parametrize("backend", BACKENDS)
at_sizes = pytest.mark.parametrize("size", [1, 2, 3, 4])
DTYPES = ("float32", "float64", "int64", "uint8", "bfloat16")
NUMELS = (0, 1, 3, 1000, 5001, 1_200_007)  # the last one takes more than one round through the slots


def values(seed: int, rank: int, numel: int, dtype: str = "float32") -> torch.Tensor:
    """Small integers, so that sums are exact in every type and order."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 8, (numel,), generator=generator).to(getattr(torch, dtype))


def digest(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)).hexdigest()


# --- all_reduce, broadcast, gather_bytes, barrier


def collectives(
    session: Session,
    backend: str,
    dtypes: Sequence[str] = DTYPES,
    numels: Sequence[int] = NUMELS,
    payload_bytes: int = 5_000_000,
) -> str:
    group = join(session, backend)
    rank, size = group.rank, group.size
    assert (rank, size) == place_in(session, backend)
    for dtype in dtypes:
        for numel in numels:
            tensor = values(numel, rank, numel, dtype)
            group.all_reduce(tensor, "a sum")
            expected = sum(values(numel, r, numel, dtype) for r in range(size))
            assert torch.equal(tensor, torch.as_tensor(expected)), (dtype, numel)
    for source in range(size):
        for numel in numels:
            tensor = values(numel, rank, numel, "bfloat16")
            group.broadcast(tensor, source, "a copy")
            assert torch.equal(tensor, values(numel, source, numel, "bfloat16"))
    for lengths in ([0] * size, list(range(size)), [(r + 1) % size * payload_bytes for r in range(size)]):
        payloads = [bytes([r]) * lengths[r] for r in range(size)]
        assert group.gather_bytes(payloads[rank], "payloads") == payloads
    group.barrier("the end")
    group.close()
    group.close()
    return "passed"


@on_all
@at_sizes
def test_collectives_agree_with_a_plain_sum_and_copy(ranks: RankHarness, backend: str, size: int) -> None:
    assert ranks.run(size, collectives, backend) == ["passed"] * size


def odd_layouts(session: Session, backend: str) -> str:
    group = join(session, backend)
    matrix = values(1, group.rank, 12).view(3, 4)
    transposed = matrix.clone().t()
    group.all_reduce(transposed, "a transposed matrix")
    whole = sum(values(1, r, 12).view(3, 4) for r in range(group.size))
    assert torch.equal(transposed, torch.as_tensor(whole).t())
    parameter = torch.nn.Parameter(matrix.clone().t(), requires_grad=True)
    group.broadcast(parameter, 1, "a parameter")
    assert torch.equal(parameter.detach(), values(1, 1, 12).view(3, 4).t())
    scalar = torch.tensor(float(group.rank))
    group.all_reduce(scalar, "a scalar")
    assert scalar.item() == sum(range(group.size))
    group.close()
    return "passed"


@on_all
def test_views_parameters_and_scalars(ranks: RankHarness, backend: str) -> None:
    assert ranks.run(2, odd_layouts, backend) == ["passed"] * 2


# --- the reducer


SPECS = (
    BucketSpec(1000, torch.float32),
    BucketSpec(1, torch.float32),
    BucketSpec(3, torch.float64),  # fewer than there are ranks
    BucketSpec(70_001, torch.float32, divided=False),
    BucketSpec(0, torch.float32),
    BucketSpec(40_003, torch.bfloat16),
)


def one_step(reducer: BucketReducer, rank: int, step: int, weight: float, order: list[int]) -> torch.Tensor:
    reducer.open(weight)
    for bucket in order:
        buffer = reducer.buffers[bucket]
        buffer.copy_(values(step * 10 + bucket, rank, buffer.numel()))
        reducer.ready(bucket)
    return reducer.finish(torch.tensor([rank, step, weight], dtype=torch.float64))


def reduce_steps(session: Session, backend: str, weights: list[float], steps: int) -> list[str]:
    group = join(session, backend)
    reducer = group.reducer(SPECS, 3)
    total = sum(weights)
    digests = []
    for step in range(steps):
        order = np.random.default_rng((group.rank, step)).permutation(len(SPECS)).tolist()
        facts = one_step(reducer, group.rank, step, weights[group.rank], order)
        assert facts.tolist() == [[r, step, weights[r]] for r in range(group.size)]
        for bucket, spec in enumerate(SPECS):
            numel = reducer.buffers[bucket].numel()
            assert (numel, reducer.buffers[bucket].dtype) == (spec.numel, spec.dtype)
            expected = torch.zeros(numel, dtype=spec.dtype)
            for r in range(group.size):
                expected += values(step * 10 + bucket, r, numel).to(spec.dtype)
            if spec.divided and total != 0:
                expected *= 1.0 / total
            assert torch.equal(reducer.buffers[bucket], expected), (step, bucket)
        digests.append(digest(*reducer.buffers))
    group.close()
    return digests


@on_all
@at_sizes
def test_reducer_gives_the_divided_sum_and_all_facts(ranks: RankHarness, backend: str, size: int) -> None:
    outcomes = ranks.run(size, reduce_steps, backend, [0.5 + r for r in range(size)], 4)
    assert all(outcome == outcomes[0] for outcome in outcomes)


@on_all
@pytest.mark.parametrize("weights", [[0.0, 0.0], [0.0, 3.0]], ids=["nobody", "one"])
def test_reducer_divides_by_the_sum_of_weights_only_if_there_is_one(
    ranks: RankHarness, backend: str, weights: list[float]
) -> None:
    outcomes = ranks.run(2, reduce_steps, backend, weights, 2)
    assert outcomes[0] == outcomes[1]


def reduce_nothing(session: Session, backend: str) -> list[Any]:
    group = join(session, backend)
    reducer = group.reducer([], 2)
    rows = []
    for step in range(50):
        reducer.open(1.0)
        rows.append(reducer.finish(torch.tensor([group.rank, step], dtype=torch.float64)).tolist())
    group.close()
    return rows


@on_all
def test_reducer_without_buckets_still_exchanges_facts(ranks: RankHarness, backend: str) -> None:
    for rows in ranks.run(3, reduce_nothing, backend):
        assert rows == [[[rank, step] for rank in range(3)] for step in range(50)]


def random_sums(session: Session, backend: str, seed: int) -> str:
    group = join(session, backend)
    generator = torch.Generator().manual_seed(seed * 100 + group.rank)
    tensor = torch.randn(100_003, generator=generator)
    group.all_reduce(tensor, "a sum")
    reducer = group.reducer([BucketSpec(100_003, torch.float32), BucketSpec(77, torch.float32)], 0)
    reducer.open(0.1 + group.rank)
    for bucket, buffer in enumerate(reducer.buffers):
        buffer.copy_(torch.randn(buffer.numel(), generator=generator))
        reducer.ready(bucket)
    assert reducer.finish(torch.zeros(0, dtype=torch.float64)).shape == (group.size, 0)
    group.close()
    return digest(tensor, *reducer.buffers)


@on_all
@pytest.mark.parametrize("size", [2, 3])
def test_bits_are_the_same_on_all_ranks_and_in_every_run(ranks: RankHarness, backend: str, size: int) -> None:
    digests = {outcome for _ in range(3) for outcome in ranks.run(size, random_sums, backend, 7)}
    assert len(digests) == 1
    assert digests != set(ranks.run(size, random_sums, backend, 8))


def forgetful(session: Session, backend: str) -> str:
    group = join(session, backend)
    reducer = group.reducer(SPECS, 0)
    reducer.open(1.0)
    reducer.ready(0)
    try:
        reducer.finish(torch.zeros(0, dtype=torch.float64))
    except RuntimeError as error:
        return str(error)
    finally:
        group.close()
    return "no error"


@on_all
def test_finish_names_buckets_that_were_never_ready(ranks: RankHarness, backend: str) -> None:
    for message in ranks.run(2, forgetful, backend):
        assert "[1, 2, 3, 4, 5]" in message


# --- several groups and several reducers in one process


def one_after_the_other(session: Session, backend: str) -> str:
    for number in range(1, 4):
        kept = []
        group = join(session, backend, number=number)
        for round_number in range(2 + number):
            tensor = values(round_number, group.rank, 50_000)
            group.all_reduce(tensor, "a sum")
            expected = sum(values(round_number, r, 50_000) for r in range(group.size))
            assert torch.equal(tensor, torch.as_tensor(expected))
        for step in range(2):
            reducers = [group.reducer(SPECS, 3) for _ in range(2)]
            for reducer in reducers:
                one_step(reducer, group.rank, step, 1.0, list(range(len(SPECS))))
            kept.append((reducers[1].buffers[3], digest(reducers[1].buffers[3])))
        group.barrier("the end")
        group.close()
        # memory of a closed group stays readable and unchanged while someone holds it, until the next view
        for buffer, before in kept:
            assert digest(buffer) == before
        meet(session, number)
    return kept[0][1]


def meet(session: Session, number: int) -> None:
    """Wait until all ranks have come to `number`: as members do between two views, by the coordinator."""
    session.control.enter(session.world.rank, number, "meet")
    deadline = time.monotonic() + 30
    while any(session.control.progress(rank)[0] < number for rank in range(session.world.size)):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@on_all
def test_groups_and_reducers_follow_each_other(ranks: RankHarness, backend: str) -> None:
    outcomes = ranks.run(2, one_after_the_other, backend)
    assert outcomes[0] == outcomes[1]
