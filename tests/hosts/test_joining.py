"""`shoal train --listen` and `shoal join` on one machine, over loopback: two agents, as on two hosts."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from pathlib import Path

import pytest
from host_runs import STEPS, Command, HostRun, difference, eventually

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> HostRun:
    """The same run with two workers of one host."""
    run = HostRun(tmp_path_factory.mktemp("undisturbed"))
    with run.train("--workers", "2", listen=None) as command:
        assert command.end() == 0, command.said
    return run


def test_workers_join_in_the_middle_and_leave_by_sigterm(tmp_path: Path, undisturbed: HostRun) -> None:
    run = HostRun(tmp_path)
    with run.train(at=(10, 25, 40), listen=LOOPBACK) as home:
        run.reached(10, home)
        assert stat.S_IMODE((run.path / "key").stat().st_mode) == 0o600
        with run.join(None, home, "--workers", "1") as joined:
            run.wait_for_someone_at_the_door()
            run.open(10)
            run.reached(25, home)
            assert run.sizes()[-1] == 2, joined.said
            joined.terminate()
            run.open(25)
            assert joined.end() == 0, joined.said
            assert "left the run" in joined.said
        run.reached(40, home)
        assert run.sizes()[-1] == 1
        run.open(40)
        assert home.end() == 0, home.said
    run.check_complete()
    assert run.summary()["faults"] == []
    assert difference(run.parameters(), undisturbed.parameters()) < 5e-6
    assert not (run.path / "key").exists()


def test_a_host_that_joins_stays_to_the_end(tmp_path: Path, undisturbed: HostRun) -> None:
    run = HostRun(tmp_path)
    with run.train("--min-workers", "2", listen=LOOPBACK) as home, run.join(None, home) as joined:
        assert home.end() == 0, home.said + joined.said
        assert joined.end() == 0, joined.said
        assert "the run is over" in joined.said
    run.check_complete()
    assert run.sizes() == [2]
    assert difference(run.parameters(), undisturbed.parameters()) < 5e-6


def test_a_run_that_was_complete_ends_for_a_host_that_joins_it_too(tmp_path: Path, undisturbed: HostRun) -> None:
    run = HostRun(tmp_path)
    shutil.copytree(undisturbed.path, run.path)
    with run.train("--min-workers", "2", listen=LOOPBACK) as home, run.join(None, home) as joined:
        assert home.end() == 0, home.said + joined.said
        assert joined.end() == 0, joined.said
        assert "the run is over" in joined.said
    run.check_complete()
    assert run.sizes()[-1] == 2
    assert run.events("run_ended")[-1]["reason"] == "it was complete already"
    assert len(run.events("step")) == STEPS, "nothing was trained again"
    assert difference(run.parameters(), undisturbed.parameters()) == 0


def test_the_only_worker_of_each_host_is_killed_in_turn_and_the_state_lives_on_at_the_other(
    tmp_path: Path, undisturbed: HostRun
) -> None:
    run = HostRun(tmp_path)
    with run.train("--min-workers", "2", at=(25, 40), listen=LOOPBACK) as home, run.join(None, home) as joined:
        run.reached(25, home)
        (worker,) = [one for one in run.report()["workers"] if one["agent"] == "home"]
        run.open(25)  # for the one that takes its place: the step is committed, so the gate is behind it
        os.kill(worker["pid"], signal.SIGKILL)
        run.reached(40, home)
        (other,) = [one for one in run.report()["workers"] if one["agent"] != "home"]
        os.kill(other["pid"], signal.SIGKILL)  # it has done its part of the next step, and waits for the first worker
        run.open(40)
        assert home.end() == 0, home.said + joined.said
        assert joined.end() == 0, joined.said
    run.check_complete()
    assert difference(run.parameters(), undisturbed.parameters()) < 5e-6
    here, elsewhere = run.summary()["faults"]
    assert here["cause"].startswith("killed by signal 9")
    named = ("killed by signal 9 (SIGKILL)", 40, "reduce")
    assert (elsewhere["cause"], elsewhere["at_step"], elsewhere["phase"]) == named, "its own agent knows where it was"


def test_a_run_whose_host_is_gone_is_given_up(tmp_path: Path) -> None:
    run = HostRun(tmp_path)
    with run.train("--min-workers", "2", at=(5,), listen=LOOPBACK) as home:
        with run.join(None, home, first="import shoal.launch.joining; shoal.launch.joining.GONE_S = 3.0") as joined:
            run.reached(5, home)
            workers = [worker["pid"] for worker in run.report()["workers"]]
            home.kill()
            home.end()
            assert joined.end() == 1, joined.said
            assert "has not answered for 3 s" in joined.said
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), what="the end of all workers")


def test_another_script_is_not_let_in(tmp_path: Path) -> None:
    run = HostRun(tmp_path)
    other = tmp_path / "other.py"
    other.write_text(run.script.read_text() + "\n# one line more\n")
    with run.train(at=(5,), listen=LOOPBACK) as home:
        run.reached(5, home)
        with run.join(None, home, "--script", "other.py") as joined:
            assert joined.end() == 2
        assert "other.py on this host is not the script of the run" in joined.said
        run.open(5)
        assert home.end() == 0, home.said
    assert run.sizes() == [1]


def test_scale_starts_and_ends_workers_of_a_run(tmp_path: Path, undisturbed: HostRun) -> None:
    run = HostRun(tmp_path)
    with run.train("--max-workers", "2", at=(10, 30, 45), listen=None) as home:
        run.reached(10, home)
        with Command(None, tmp_path, "scale", "run", "--workers", "2") as scaling:
            run.wait_for_someone_at_the_door()
            run.open(10)
            assert scaling.end() == 0, scaling.said
            assert "1 worker before, 2 now" in scaling.said
        run.reached(30, home)
        assert run.sizes()[-1] == 2
        with Command(None, tmp_path, "scale", "run", "--workers", "1") as scaling:
            eventually(lambda: run.report()["wanted"] == 1, what="being asked for one worker")
            run.open(30)
            assert scaling.end() == 0, scaling.said
            assert "2 workers before, 1 now" in scaling.said
        run.reached(45, home)
        assert run.sizes()[-1] == 1
        run.open(45)
        assert home.end() == 0, home.said
    run.check_complete()
    assert difference(run.parameters(), undisturbed.parameters()) < 5e-6
    with Command(None, tmp_path, "scale", "run", "--workers", "2") as late:
        assert late.end() == 2
        assert "is not running now" in late.said
    assert run.summary()["steps"] == STEPS
