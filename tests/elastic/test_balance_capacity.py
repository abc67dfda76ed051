"""A first guess of speed from cores, quotas and load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.elastic.capacity import Capacity, cgroup_quota, guess_speeds, measure

pytestmark = pytest.mark.unit


def host(cores: int, load: float = 0.0, quota: float | None = None) -> Capacity:
    return Capacity(tuple(range(cores)), quota, load, cores)


def speeds(*workers: tuple[str, Capacity], threads: int = 1, at_work: str = "") -> tuple[float, ...]:
    names = [name for name, _ in workers]
    return guess_speeds([one for _, one in workers], names, threads, [name in at_work for name in names])


def test_here() -> None:
    found = measure()
    assert set(found.cpus) == os.sched_getaffinity(0)
    assert 0 < found.cores <= len(found.cpus)
    assert Capacity.from_json(found.to_json()) == found


def test_an_idle_core_each_is_full_speed() -> None:
    assert speeds(("a", host(2)), ("a", host(2)), ("b", host(64))) == (1.0, 1.0, 1.0)


def test_more_workers_than_cores_share_them() -> None:
    assert speeds(("a", host(1)), ("a", host(1)), ("b", host(1))) == (0.5, 0.5, 1.0)
    assert speeds(("a", host(4)), ("b", host(2)), threads=4) == (1.0, 0.5)


def test_what_else_runs_takes_its_part() -> None:
    assert speeds(("a", host(2, load=3.0)), ("b", host(2))) == (0.5, 1.0)
    assert speeds(("a", host(8, load=3.0)), ("b", host(2))) == (1.0, 1.0)


def test_the_run_does_not_count_as_something_else() -> None:
    """A newcomer finds the load of those who were there before, which is the run's own."""
    before, new = host(2, load=2.0), host(2, load=2.0)
    assert speeds(("a", before), ("a", before), ("b", host(2)), at_work="a") == (1.0, 1.0, 1.0)
    assert speeds(("a", before), ("a", new), ("b", host(2))) == (0.5, 0.5, 1.0)


def test_a_quota_counts_as_fewer_cores() -> None:
    assert speeds(("a", host(8, quota=0.5)), ("b", host(8))) == (0.5, 1.0)


def test_workers_with_cores_of_their_own_do_not_share() -> None:
    first, second = Capacity((0,), None, 0.0, 2), Capacity((1,), None, 0.0, 2)
    assert speeds(("a", first), ("a", second)) == (1.0, 1.0)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_quota_of_control_groups_version_2(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/job/worker\n", "sys/fs/cgroup/job/worker/cpu.max": "max 100000\n"})
    assert cgroup_quota(tmp_path) is None
    write(tmp_path, {"sys/fs/cgroup/job/cpu.max": "150000 100000\n"})
    assert cgroup_quota(tmp_path) == 1.5


def test_quota_of_control_groups_version_1(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/cpu,cpuacct/job"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "3:memory:/x\n2:cpu,cpuacct:/job\n0::/\n",
            f"{base}/cpu.cfs_quota_us": "-1\n",
            f"{base}/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_quota(tmp_path) is None
    write(tmp_path, {f"{base}/cpu.cfs_quota_us": "25000\n"})
    assert cgroup_quota(tmp_path) == 0.25


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path) is None
    assert measure(tmp_path).load == 0.0
