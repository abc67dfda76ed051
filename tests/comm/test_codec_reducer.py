"""Buckets that travel coded, on real processes: the same bits everywhere, sums of what each member's codec makes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from comm_ranks import BACKENDS, join

from shoal.comm.codecs.coded import Section
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.leaders import LeaderCodecReducer, coded_reducer
from shoal.comm.codecs.names import codec_named
from shoal.comm.codecs.probe import measure_codec, measure_link
from shoal.comm.codecs.reducer import CodecReducer
from shoal.comm.group import BucketSpec, Group
from shoal.comm.hierarchical import HierarchicalGroup
from shoal.comm.solo import SoloGroup
from shoal.core.world import Member
from shoal.launch.session import Session
from shoal.testing.codec_contract import norm, sample
from shoal.testing.ranks import RankHarness

SPECS = ("bf16", "fp16", "int8", "topk:0.05", "powersgd:2")

BUCKETS = (
    BucketSpec(64 * 48 + 48, torch.float32),
    BucketSpec(3000, torch.float32, divided=False),
    BucketSpec(200, torch.float64),
    BucketSpec(40, torch.bfloat16),
    BucketSpec(5, torch.float64, divided=False),
)
SECTIONS = (
    (Section("weight", 0, 64 * 48, (64, 48)), Section("bias", 64 * 48, 64 * 48 + 48, (48,))),
    (Section("table", 0, 3000, (60, 50)),),
    (Section("wide", 0, 200, (200,)),),
    (Section("narrow", 0, 40, (40,)),),
    (),
)
STEPS = 3


def given(rank: int, step: int, bucket: int) -> torch.Tensor:
    spec = BUCKETS[bucket]
    return sample((spec.numel,), torch.float64, seed=1000 * rank + 10 * step + bucket).to(spec.dtype)


def weight(rank: int, step: int) -> float:
    return float(rank + step + 1)


def run_steps(group: Group, feedback: ErrorFeedback) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """What the buffers and facts are after each step."""
    reducer = coded_reducer(group, BUCKETS, 2, feedback, SECTIONS)
    found = []
    for step in range(STEPS):
        reducer.open(weight(group.rank, step), size=10.0)
        order = [3, 0, 4, 2, 1] if group.rank % 2 else range(len(BUCKETS))  # each member in an order of its own
        for bucket in order:
            reducer.buffers[bucket].copy_(given(group.rank, step, bucket))
            reducer.ready(bucket)
        facts = reducer.finish(torch.tensor([group.rank, step], dtype=torch.float64))
        feedback.commit()
        found.append(([buffer.clone() for buffer in reducer.buffers], facts))
    return found


def expected(spec: str, teams: Sequence[Sequence[int]]) -> list[list[torch.Tensor]]:
    """The same, computed in one process: what each team of ranks would send for its sum, added up."""
    feedbacks = [ErrorFeedback(codec_named(spec)) for _ in teams]
    results = []
    for step in range(STEPS):
        sums = [torch.zeros(one.numel, dtype=one.dtype) for one in BUCKETS]
        for team, feedback in zip(teams, feedbacks, strict=True):
            for bucket, (one, sections) in enumerate(zip(BUCKETS, SECTIONS, strict=True)):
                flat = given(team[0], step, bucket)
                for rank in team[1:]:
                    flat = flat + given(rank, step, bucket)
                if not sections or one.dtype == torch.bfloat16:
                    sums[bucket] += flat
                    continue
                parts = [(s.name, flat[s.start : s.stop].view(s.shape), s.start, s.stop) for s in sections]
                if not feedback.codec.by_parameter:
                    parts = [(f"bucket {bucket}", flat, 0, one.numel)]
                for name, tensor, start, stop in parts:
                    out = torch.empty_like(tensor)
                    feedback.codec.decode(name, feedback.encode(name, tensor, 10.0), out)
                    sums[bucket][start:stop] += out.view(-1)
            feedback.commit()
        total = sum(weight(rank, step) for team in teams for rank in team)
        results.append([s / total if one.divided else s for s, one in zip(sums, BUCKETS, strict=True)])
    return results


def reduce_coded(session: Session, backend: str) -> dict[str, str]:
    """Digests of all that this rank holds after its steps, by codec."""
    group, digests = join(session, backend, 60.0), {}
    layout = backend.partition(" ")[2]
    teams = [[int(rank) for rank in team] for team in layout.split("/")] if layout else [[r] for r in range(group.size)]
    for spec in SPECS:
        feedback = ErrorFeedback(codec_named(spec))
        found, hashed = run_steps(group, feedback), hashlib.sha256()
        for step, ((buffers, facts), sums) in enumerate(zip(found, expected(spec, teams), strict=True)):
            assert facts.tolist() == [[rank, step] for rank in range(group.size)], facts
            for bucket, (buffer, right) in enumerate(zip(buffers, sums, strict=True)):
                difference, bound = norm(buffer - right), 1e-5 if buffer.dtype != torch.bfloat16 else 1e-2
                assert difference <= bound * (1 + norm(right)), (spec, step, bucket, difference)
                hashed.update(buffer.view(torch.uint8).numpy().tobytes())
        digests[spec] = hashed.hexdigest()
    bandwidth, latency_s = measure_link(group, 1 << 16)
    assert bandwidth > 0
    assert latency_s > 0
    group.close()
    return digests


@pytest.mark.contract
@pytest.mark.ranks
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [2, 3])
def test_all_hold_the_same_bits_and_the_sum_of_what_each_sent(ranks: RankHarness, backend: str, size: int) -> None:
    first, *others = ranks.run(size, reduce_coded, backend, deadline_s=120.0)
    assert all(other == first for other in others)


@pytest.mark.contract
@pytest.mark.ranks
@pytest.mark.parametrize("layout", ["02/13", "0/12"])
def test_in_two_levels_leaders_code_what_their_teams_have_summed(ranks: RankHarness, layout: str) -> None:
    size = len(layout) - 1
    first, *others = ranks.run(size, reduce_coded, f"hierarchical {layout}", deadline_s=120.0)
    assert all(other == first for other in others)


def tcp_bytes() -> int:
    """What the kernel has sent over all TCP sockets of this process, and peers have acknowledged."""
    found: dict[int, int] = {}  # by inode: some have several descriptors
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as one:
            if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                found[os.fstat(one.fileno()).st_ino] = struct.unpack_from("<Q", info, 120)[0]  # tcpi_bytes_acked
    return sum(found.values())


def bytes_between_hosts(session: Session, spec: str, steps: int) -> tuple[int, int]:
    """What this rank has sent over its sockets in some steps, and what its reducer says of the link."""
    group = join(session, "hierarchical 013/2", 60.0)
    spec_of_bucket, feedback = BucketSpec(1 << 18, torch.float32), ErrorFeedback(codec_named(spec))
    sections = [[Section("w", 0, 1 << 18, (512, 512))]]
    reducer = coded_reducer(group, [spec_of_bucket], 1, feedback, sections)
    group.barrier("all are there")
    before = tcp_bytes()
    for step in range(steps):
        reducer.open(1.0)
        reducer.buffers[0].copy_(sample((1 << 18,), seed=10 * step + group.rank))
        reducer.ready(0)
        reducer.finish(torch.zeros(1, dtype=torch.float64))
        feedback.commit()
    group.barrier("all are done")
    sent = tcp_bytes() - before
    group.barrier("all have counted")
    group.close()
    inner = group.inner.bytes_to_sum(4 << 18) if isinstance(group, HierarchicalGroup) else 0
    assert (group.rank in (0, 2)) == bool(feedback.state()), "what is left out is the leaders'"
    return sent, steps * (reducer.bytes_sent - inner)


@pytest.mark.contract
@pytest.mark.ranks
def test_only_payloads_of_leaders_cross_between_hosts(ranks: RankHarness) -> None:
    steps, whole = 5, 4 << 18
    found = ranks.run(4, bytes_between_hosts, "topk:0.01", steps, deadline_s=120.0)
    for rank, (sent, said) in enumerate(found):
        if rank in (0, 2):  # a leader: once, however many its team has
            assert said == pytest.approx(steps * 0.02 * whole, rel=0.1)
            assert said <= sent <= said + 20_000
        else:
            assert said == 0
            assert sent < 1000, "who is no leader uses no link"


@pytest.mark.unit
def test_a_member_that_leads_no_more_gives_its_team_what_it_had_left_out() -> None:
    members = tuple(Member("worker", rank, "host", rank, str(rank), "agent", rank) for rank in range(2))
    group = HierarchicalGroup((members,), members[1], SoloGroup(), None)
    feedback, debt = ErrorFeedback(codec_named("topk:0.05")), sample((BUCKETS[0].numel,), seed=77)
    feedback.load({"bucket 0": debt})
    reducer = LeaderCodecReducer(group, BUCKETS, 2, feedback, SECTIONS)
    for end, owed in ((feedback.discard, 1.0), (feedback.commit, 1.0), (feedback.commit, 0.0)):
        reducer.open(1.0, size=10.0)
        reducer.buffers[0].fill_(1.0)
        reducer.ready(0)
        assert norm(reducer.buffers[0] - 1.0 - owed * 10.0 * debt) <= 1e-5 * norm(debt)
        end()
    assert not feedback.state()


def residuals_together(session: Session, backend: str) -> list[Any]:
    """The residuals of all, told by one; then only the first goes on with them, and all tell again."""
    group, told = join(session, backend, 60.0), []
    for spec in ("topk:0.05", "powersgd:2"):
        feedback = ErrorFeedback(codec_named(spec))
        run_steps(group, feedback)
        reducer = CodecReducer(group, BUCKETS, 2, feedback, SECTIONS)
        before = reducer.summed_residuals()
        assert before.keys() == {"weight", "bias", "table", "wide"}
        assert norm(before["weight"]) > 0
        reducer.load_residuals(before if group.rank == 0 else {})
        after = reducer.summed_residuals()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert (group.rank == 0) == bool(feedback.state())
        told.append({name: tensor.tolist() for name, tensor in before.items()})
    group.close()
    return told


@pytest.mark.contract
@pytest.mark.ranks
def test_what_all_have_left_out_is_added_up_and_carried_on_by_the_first(ranks: RankHarness) -> None:
    first, second = ranks.run(2, residuals_together, "gloo", deadline_s=120.0)
    assert first == second


def gather_in_turn(session: Session, backend: str) -> str:
    """Several gathers are under way at a time; lengths of zero and of more than a slot of shared memory."""
    group = join(session, backend, 60.0)
    for lengths in ([8], [1, 5_000_000, 1000]):
        owns = [torch.full((length,), 10 * group.rank + at, dtype=torch.uint8) for at, length in enumerate(lengths)]
        parts = [[torch.empty_like(own) for _ in range(group.size)] for own in owns]
        waits = [group.start_gather(into, own, "payloads") for into, own in zip(parts, owns, strict=True)]
        for at, (wait, into) in enumerate(zip(waits, parts, strict=True)):
            wait()
            assert all(part.eq(10 * rank + at).all() for rank, part in enumerate(into))
    group.barrier("the end")
    group.close()
    return "passed"


@pytest.mark.contract
@pytest.mark.ranks
@pytest.mark.parametrize("backend", BACKENDS)
def test_gathers_of_tensors(ranks: RankHarness, backend: str) -> None:
    assert ranks.run(3, gather_in_turn, backend, deadline_s=120.0) == ["passed"] * 3


# ---- without processes


@pytest.mark.unit
def test_alone_nothing_is_coded_and_what_was_left_out_is_made_good() -> None:
    feedback = ErrorFeedback(codec_named("topk:0.05"))
    debt = sample((BUCKETS[0].numel,), seed=77)
    feedback.load({"bucket 0": debt})
    (first, facts), (second, _), _ = run_steps(SoloGroup(), feedback)
    assert facts.tolist() == [[0.0, 0.0]]
    owed = (given(0, 0, 0) + 10.0 * debt) / weight(0, 0)
    assert norm(first[0] - owed) <= 1e-6 * norm(owed)
    assert torch.equal(first[1], given(0, 0, 1))
    assert norm(second[0] - given(0, 1, 0) / weight(0, 1)) <= 1e-6 * norm(second[0])
    assert not any(residual.any() for residual in feedback.state().values())


@pytest.mark.unit
def test_a_bucket_that_was_forgotten_is_named() -> None:
    reducer = CodecReducer(SoloGroup(), BUCKETS, 0, ErrorFeedback(codec_named("bf16")), SECTIONS)
    reducer.open(1.0)
    for bucket in (0, 3, 4):
        reducer.ready(bucket)
    with pytest.raises(RuntimeError, match=r"buckets \[1, 2\]"):
        reducer.finish(torch.zeros(0, dtype=torch.float64))


@pytest.mark.unit
def test_a_weight_of_zero_divides_nothing() -> None:
    reducer = CodecReducer(SoloGroup(), BUCKETS[:1], 1, ErrorFeedback(codec_named("bf16")), SECTIONS[:1])
    reducer.open(0.0)
    reducer.buffers[0].fill_(3.0)
    reducer.ready(0)
    assert reducer.finish(torch.tensor([5.0], dtype=torch.float64)).tolist() == [[5.0]]
    assert reducer.buffers[0].eq(3.0).all()


@pytest.mark.unit
@pytest.mark.parametrize("spec", SPECS)
def test_the_cost_of_a_codec_is_measured_on_gradients(spec: str) -> None:
    gradients = [("weight", sample((64, 48))), ("bias", sample((48,)))]
    size = sum(tensor.nbytes for _, tensor in gradients)
    cost = measure_codec(spec, gradients, 2 * size, 2)
    assert cost.name == spec
    assert 0 < cost.ratio < 0.51
    assert 0 < cost.error < 1
    assert cost.encode_s > 0
    assert cost.decode_s > 0


@pytest.mark.unit
def test_of_a_large_gradient_only_a_part_is_coded_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.comm.codecs.probe._CODEC_BYTES", 40_000)
    seen = []
    right = ErrorFeedback.encode

    def encode(self: ErrorFeedback, name: str, tensor: torch.Tensor, size: float = 1.0) -> torch.Tensor:
        seen.append(tensor.nbytes)
        return right(self, name, tensor, size)

    monkeypatch.setattr(ErrorFeedback, "encode", encode)
    gradients = [("table", sample((500, 100))), ("weight", sample((64, 48))), ("bias", sample((48,)))]
    cost = measure_codec("powersgd:2", gradients, sum(tensor.nbytes for _, tensor in gradients), 2)
    assert set(seen) == {40_000}
    assert cost.ratio == (2 * 4 * 600 + 2 * 4 * 112 + 4 * 48) / (4 * (50_000 + 64 * 48 + 48))
