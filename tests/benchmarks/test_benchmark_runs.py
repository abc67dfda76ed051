"""What a run is made of: the same work for everyone, and nothing of it left behind."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import processes, workloads
from benchmarks.runners.job import Job, Stopwatch

JOB = Job("mlp", seed=3, steps=2, warmup=1, workers=2, batch=4, directory="unused")


@pytest.mark.unit
@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_the_models_are_the_ones_that_are_meant(name: str) -> None:
    workload = workloads.WORKLOADS[name]
    module = workload.build()
    assert sum(p.numel() for p in module.parameters()) == workload.parameters
    assert module(torch.zeros(2, *workloads.SAMPLE_SHAPE)).shape == (2, workloads.CLASSES)


@pytest.mark.unit
def test_the_workers_batches_are_the_samples_each_once_in_order() -> None:
    x, y = workloads.samples(JOB)
    parts = zip(workloads.batches(JOB, 0), workloads.batches(JOB, 1), strict=True)
    dealt = [batch for step in parts for batch in step]
    assert torch.equal(torch.cat([part[0] for part in dealt]), x)
    assert torch.equal(torch.cat([part[1] for part in dealt]), y)
    assert len(x) == (2 + 1) * 8


@pytest.mark.unit
def test_the_stopwatch_leaves_the_warm_up_out_and_meets_once() -> None:
    met: list[int] = []
    watch = Stopwatch(JOB, meet=lambda: met.append(1))
    watch.step()
    assert met == [1]
    watch.step()
    with pytest.raises(RuntimeError, match="2 steps were made, not 3"):
        watch.report(checksum=0.0)
    watch.step()
    assert met == [1]
    assert watch.report(checksum=7.0).elapsed_s > 0
    assert watch.report(checksum=7.0).checksum == 7.0


@pytest.mark.ranks
def test_what_a_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    alive, begun = tmp_path / "alive", tmp_path / "begun"
    os.mkfifo(alive)
    os.mkfifo(begun)
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # a sleeper in a session of its own holds the first pipe open: it closes only with the sleeper's death
        sleeper = f"exec 3> {alive}; echo ready >&3; echo > {begun}; exec sleep 600"
        script = f"setsid sh -c '{sleeper}' & read answer < {begun}"
        done = processes.run(["/bin/sh", "-c", script], {}, tmp_path / "log", timeout_s=60)
        assert done.status == 0
        assert os.read(reader, 100) == b"ready\n"
        poll = select.poll()
        poll.register(reader, select.POLLHUP)
        assert poll.poll(60_000), "the sleeper is still there"
    finally:
        os.close(reader)


@pytest.mark.ranks
def test_a_command_that_does_not_end_is_stopped_and_says_so(tmp_path: Path) -> None:
    done = processes.run(["sleep", "600"], {}, tmp_path / "log", timeout_s=0.2)
    assert done.status is None
    assert done.wall_s < 60
    assert "stopped after" in done.reason()


@pytest.mark.ranks
def test_a_failure_is_told_in_one_line(tmp_path: Path) -> None:
    script = "import sys; sys.stderr.write('noise\\n'); raise ValueError('three is too many')"
    done = processes.run([sys.executable, "-c", script], {}, tmp_path / "log", timeout_s=60)
    assert done.reason() == "exit status 1: ValueError: three is too many"
