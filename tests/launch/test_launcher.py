"""The launcher with real workers: what a script finds, how its end becomes a status, and what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launches import Launches

from shoal.core.errors import ConfigError, UserError
from shoal.core.seeds import init_seed
from shoal.launch.job import Job
from shoal.launch.launcher import Launcher
from shoal.launch.nursery import Nursery

pytestmark = pytest.mark.ranks


def _report(directory: Path, rank: int) -> dict[str, object]:
    return dict(json.loads((directory / f"report-{rank}.json").read_text()))


ENVIRONMENT = """
import json, random, torch, numpy
import neighbour
from pathlib import Path
Path(f"report-{rank}.json").write_text(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0], "neighbour": neighbour.NAME,
    "rank": rank, "size": size, "threads": torch.get_num_threads(), "layers": session.layers,
    "mode": session.mode, "json": session.json_output, "key": session.attendance.key, "script": session.script,
    "seed": torch.initial_seed(), "draws": [torch.rand(()).item(), random.random(), numpy.random.rand()],
    "session": os.getsid(0), "pid": os.getpid(), "input": sys.stdin.read(), "launched": session.launched,
    "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
    "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "fds": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd > "2"
                  and os.path.exists(f"/proc/self/fd/{fd}")),
}))
"""


def test_a_worker_is_an_ordinary_program_with_a_session(launches: Launches) -> None:
    (launches.directory / "neighbour.py").write_text("NAME = 'next door'")
    outcome = launches.run(
        ENVIRONMENT,
        workers=2,
        script_args=("--alpha", "1"),
        layers=(("--config run.yaml", {"seed": 7, "clip": {"norm": 1.0}}), ("the command line", {"seed": 9})),
        json_output=True,
        threads=2,
    )
    assert outcome.status == 0
    for rank in (0, 1):
        found = _report(launches.directory, rank)
        script = str(launches.directory / "script.py")
        assert found["name"] == "__main__"
        assert found["file"] == found["script"] == script
        assert found["argv"] == [script, "--alpha", "1"]
        assert found["path"] == str(launches.directory)
        assert found["neighbour"] == "next door"
        assert (found["rank"], found["size"], found["threads"]) == (rank, 2, 2)
        assert found["layers"] == [
            ["--config run.yaml", {"seed": 7, "clip": {"norm": 1.0}}],
            ["the command line", {"seed": 9}],
        ]
        assert (found["mode"], found["json"], found["launched"]) == ("train", True, True)
        assert found["seed"] == init_seed(9)
        assert found["session"] == found["pid"], "a worker must not be in the terminal's process group"
        assert found["input"] == ""
        assert found["sigint"]
        assert not found["sigterm"], "it is notice to go"
        assert found["key"] == f"home/{rank}"
    first, second = _report(launches.directory, 0), _report(launches.directory, 1)
    assert first["draws"] == second["draws"], "initial weights must be the same on every worker"


def test_cores_are_shared_out_unless_stated(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert Job(1, "s").threads_per_worker() == cores
    assert Job(2 * cores, "s").threads_per_worker() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert Job(2, "s").threads_per_worker() == 3
    assert Job(2, "s", threads=5).threads_per_worker() == 5


def test_the_first_workers_output_reaches_the_terminal_and_the_others_their_logs(
    launches: Launches, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = launches.directory / "run"
    body = f"""
print("before", rank); print("to stderr", rank, file=sys.stderr)
if rank == 0:
    os.makedirs({str(run_dir / "logs")!r})
    session.report({{"type": "started", "run_dir": {str(run_dir)!r}}})
    session.report({{"type": "finished", "summary": {{"status": "completed"}}}})
os.write(1, b"after\\n")
"""
    outcome = launches.run(body, workers=3)
    assert (outcome.status, outcome.run_dir) == (0, str(run_dir))
    assert outcome.summary == {"status": "completed"}
    shown = capfd.readouterr()
    assert shown.out == "before 0\nafter\n"
    assert shown.err == "to stderr 0\n"
    for rank in (1, 2):
        assert (run_dir / "logs" / f"worker-{rank}.log").read_text() == f"before {rank}\nto stderr {rank}\nafter\n"
    assert not (run_dir / "logs" / "worker-0.log").exists()


def test_relayed_output_goes_through_the_streams_of_this_process(
    launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launches.run("print('hällo'); print('oh', file=sys.stderr)", relay=True).status == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("hällo\n", "oh\n")


def test_much_output_before_a_run_directory_does_not_stop_a_worker(launches: Launches) -> None:
    run_dir = launches.directory / "run"
    body = f"""
if rank == 1:
    print("x" * 3_000_000); print("the end")
    control.enter(1, 1, "forward")
else:
    while control.progress(1)[0] == 0: time.sleep(0.005)
    os.makedirs({str(run_dir / "logs")!r})
    session.report({{"type": "started", "run_dir": {str(run_dir)!r}}})
"""
    assert launches.run(body, workers=2).status == 0
    log = (run_dir / "logs" / "worker-1.log").read_bytes()
    assert log.endswith(b"the end\n")
    assert len(log) <= 1 << 20


def test_a_script_that_trains_nothing_is_a_mistake(launches: Launches, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = launches.run("x = 1", workers=2, prelude="")
    assert outcome.status == 2
    shown = capfd.readouterr().err
    assert shown.count("did not build a Trainer and call fit(), nor shoal.prepare()") == 1
    assert shown.startswith("shoal: error: ")
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('no data here')", 1),
        ("from shoal.launch.session import SessionEnd\nraise SessionEnd", 0),
        ("from shoal.core.errors import ConfigError\nraise ConfigError('lr=x: not a number')", 2),
        ("from shoal.core.errors import ShoalError\nraise ShoalError('it broke')", 1),
        ("raise ValueError('bad')", 1),
        ("os._exit(0)", 1),
        ("os._exit(5)", 1),
    ],
)
def test_exit_statuses(launches: Launches, body: str, status: int) -> None:
    assert launches.run(body).status == status


def test_asking_a_script_for_help_is_no_mistake(launches: Launches, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = launches.run(
        "import argparse\nargparse.ArgumentParser().parse_args()", prelude="", script_args=("--help",)
    )
    assert outcome.status == 0
    assert "usage: script.py" in capfd.readouterr().out


def test_exit_handlers_run_once_and_what_is_to_be_done_at_the_end_is_done(launches: Launches) -> None:
    body = """
import atexit
note = lambda word: open("notes", "a").write(word + "\\n")
atexit.register(note, "handler")
session.at_end(lambda: note("end"))
"""
    assert launches.run(body).status == 0
    assert (launches.directory / "notes").read_text() == "end\nhandler\n"


def test_a_worker_that_does_not_leave_is_pushed_out(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.launch.supervisor.LEAVE_S", 0.2)
    body = "import threading; threading.Thread(target=signal.pause).start()"
    assert launches.run(body).status == 0


def test_what_a_worker_has_started_ends_with_it(launches: Launches) -> None:
    body = """
import subprocess
child = subprocess.Popen(["sleep", "600"])
open("child", "w").write(str(child.pid))
"""
    with Nursery(("torch", "shoal.launch.worker")) as nursery:
        Launcher(Job(1, launches.script(body), threads=1), nursery).run()
    pid = int((launches.directory / "child").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_payload_comes_by_descriptor(launches: Launches, capsys: pytest.CaptureFixture[str]) -> None:
    class Local:
        value = 21

    big = b"x" * 3_000_000

    def payload() -> None:
        from shoal.launch.session import current

        session = current()
        session.next_fit()
        if session.world.rank == 1:
            session.report({"type": "finished", "summary": {"twice": Local.value * 2, "size": len(big)}})
        print("from", session.world.rank)

    outcome = launches.payload(payload, workers=2)
    assert outcome.status == 0
    assert outcome.summary == {"twice": 42, "size": 3_000_000}
    assert capsys.readouterr().out == "from 0\n"


def test_what_cannot_be_sent_is_a_mistake(launches: Launches) -> None:
    lock = threading.Lock()
    with pytest.raises(UserError, match="cannot be sent to the workers"):
        launches.payload(lock.acquire)


def test_an_error_of_a_payload_is_for_the_caller_to_raise(
    launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    def payload() -> None:
        raise ValueError("bad cell")

    outcome = launches.payload(payload)
    assert outcome.status == 1
    assert outcome.error is not None
    assert "ValueError: bad cell" in outcome.error
    assert "bad cell" not in capsys.readouterr().err


def test_impossible_jobs_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers=0"):
        Job(0, "script.py")
    with pytest.raises(ConfigError, match="nothing to run"):
        Job(1)
    with pytest.raises(ConfigError, match="at most"):
        Launcher(Job(5000, "script.py"))


def test_many_launches_leave_no_descriptors(launches: Launches) -> None:
    def descriptors() -> set[str]:
        return {entry.name for entry in Path("/proc/self/fd").iterdir()}

    launches.run("", workers=2)
    before = descriptors()
    for body in ("", "raise ValueError", "os.kill(os.getpid(), signal.SIGKILL)"):
        launches.run(body, workers=2, relay=True)
    assert descriptors() == before


def test_from_a_thread_and_with_a_zygote_of_its_own(launches: Launches) -> None:
    script = launches.script("print(session.world.size)")
    outcomes: list[int] = []
    thread = threading.Thread(target=lambda: outcomes.append(Launcher(Job(2, script, threads=1)).run().status))
    thread.start()
    thread.join(60)
    assert outcomes == [0]


def test_the_launcher_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['-m']; import shoal.launch.launcher; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_parent_of_workers_that_dies_ends_the_run(launches: Launches, capfd: pytest.CaptureFixture[str]) -> None:
    script = launches.script("os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)")
    assert Launcher(Job(2, script, threads=1), Nursery(("torch", "shoal.launch.worker"))).run().status == 1
    assert "has ended" in capfd.readouterr().err
