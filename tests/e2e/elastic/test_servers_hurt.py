"""Runs with parameter servers in which workers and servers die: every sample shapes the model once, all the same."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable

import pytest
from e2e import Process, Run
from self_hurt import Trials, assert_same, script

from shoal.launch.failure import silence_s

pytestmark = pytest.mark.ranks

NORM = "nn.BatchNorm1d(16),"
BSP = ("--strategy", "parameter-server", "--servers", "2", "--workers", "3")
ASYNC = ("--strategy", "async", "--servers", "2", "--workers", "3")
DIE_TOGETHER = "step() == 14 and die(f'die {rank()}')"
KILLS_SERVER = """
import json

def kill_server(name="server", number=signal.SIGKILL):
    "The first process of server 0, as the log of the run has it."
    if not once(name):
        return
    lines = [json.loads(line) for line in open("run/events.jsonl") if line.endswith("\\n")]
    pids = [one["pid"] for one in lines if one["kind"] == "member_joined" and one.get("role") == "server"]
    os.kill(pids[0], number)
"""


def with_servers_hurt(text: str) -> str:
    return text.replace("class Net", f"{KILLS_SERVER}\n\nclass Net")


def assert_whole(run: Run) -> None:
    summary = run.summary()
    assert summary["status"] == "completed"
    assert summary["coverage"] == {"expected": 711, "once": 711, "missed": 0, "repeated": 0}
    assert summary["final"]["test_loss"] < 1.2, summary["final"]  # it was 1.4 before training


@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_of_a_synchronous_run_dies(trials: Trials, victim: int) -> None:
    calm = trials.calm(script(norm=NORM), *BSP)
    hurt = script(norm=NORM, forward=f"rank() == {victim} and step() == 14 and die()")
    done, run = trials.train(hurt, *BSP)
    assert done.status == 0, done.err
    assert_same(run, calm)
    assert "staleness" not in run.summary(), "they go in step"


@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_of_an_asynchronous_run_dies(trials: Trials, victim: int) -> None:
    done, run = trials.train(script(forward=f"rank() == {victim} and step() >= 14 and die()"), *ASYNC)
    assert done.status == 0, done.err
    assert_whole(run)


def test_a_server_with_a_copy_dies_and_nothing_is_lost(trials: Trials) -> None:
    words = (*BSP, "--set", "server.replicas=2")
    calm = trials.calm(script(norm=NORM), *words)
    hurt = with_servers_hurt(script(norm=NORM, forward="rank() == 1 and step() == 14 and kill_server()"))
    done, run = trials.train(hurt, *words)
    assert done.status == 0, done.err
    assert_same(run, calm)
    assert not [event for event in run.events("warning") if "back from step" in event["message"]]


def test_a_server_without_a_copy_dies_and_the_run_goes_back(trials: Trials) -> None:
    settings = "checkpoint={'every': '5 steps'},"
    calm = trials.calm(script(norm=NORM, settings=settings), *BSP)
    hurt = script(norm=NORM, settings=settings, forward="rank() == 1 and step() == 14 and kill_server()")
    done, run = trials.train(with_servers_hurt(hurt), *BSP)
    assert done.status == 0, done.err
    assert_same(run, calm)


def test_a_server_without_a_copy_freezes_and_only_one_deadline_counts(trials: Trials) -> None:
    """It is put out when its time is over; whoever waits for it is neither put out with it nor gives up."""
    settings = "checkpoint={'every': '5 steps'}, elastic={'hang_s': 4.0},"
    calm = trials.calm(script(norm=NORM, settings=settings), *BSP)
    freezes = "rank() == 1 and step() == 14 and kill_server(number=signal.SIGSTOP)"
    done, run = trials.train(with_servers_hurt(script(norm=NORM, settings=settings, forward=freezes)), *BSP)
    assert done.status == 0, done.err
    assert_same(run, calm)
    (fault,) = run.summary()["faults"]
    assert fault["member"].startswith("server 0")
    silent_s = silence_s(fault["cause"])
    assert silent_s is not None
    assert 4.0 <= silent_s < 30.0, "as the script has it, not the default"


OWN_SERVER = """
def freeze_server():
    "The server that this process has started for itself."
    if not once("server"):
        return
    children = " ".join(one.read_text() for one in Path("/proc/self/task").glob("*/children")).split()
    (pid,) = [int(one) for one in children if b"shoal.store.process" in Path(f"/proc/{one}/cmdline").read_bytes()]
    os.kill(pid, signal.SIGSTOP)
"""


def test_a_server_that_a_plain_process_has_for_itself_freezes_and_is_replaced(
    trials: Trials, start: Callable[..., Process]
) -> None:
    how = {
        "norm": NORM,
        "settings": "strategy='parameter-server', checkpoint={'every': '5 steps'}, elastic={'hang_s': 3.0}, "
        "passes='grain',",
    }
    calm = trials.calm(script(**how), "--workers", "1")
    shutil.rmtree("marks")
    hurt = script(**how, forward="step() == 14 and freeze_server()", fit="trainer.fit(run_dir='run')")
    trials.shoal.write(hurt.replace("class Net", f"{OWN_SERVER}\n\nclass Net"))
    done = start([sys.executable, "script.py"]).end()
    assert done.status == 0, done
    run = trials.shoal.run
    assert_same(run, calm, 0.0)
    lost, back = [event["message"] for event in run.events("warning")]
    assert re.fullmatch(
        r"server 0 on \S+ \(process \d+\) was ended: stopped by a signal \(SIGSTOP\), no sign of life for \d+ s; "
        "it is started again",
        lost,
    )
    assert back == "the servers had lost the model: back from step 14 to step 10"


TABLE = "self.table = nn.Embedding(3000, 4, sparse=True)"
ROWS = "(x * 1000).abs().long().clamp(max=2999)"  # ten of a sample


def with_a_table(text: str, momentum: str = "") -> str:
    """The same with an embedding, of which a batch touches few rows."""
    text = text.replace(", momentum=0.9", momentum).replace("self.body = ", f"{TABLE}\n        self.body = ")
    return text.replace("return self.body(x)", f"return self.body(x) + self.table({ROWS}).mean(1)")


def test_a_server_with_a_copy_of_a_sparse_table_dies_and_nothing_is_lost(trials: Trials) -> None:
    words = (*BSP, "--set", "server.replicas=2")
    calm = trials.calm(with_a_table(script()), *words)
    hurt = with_servers_hurt(script(forward="rank() == 1 and step() == 14 and kill_server()"))
    done, run = trials.train(with_a_table(hurt), *words)
    assert done.status == 0, done.err
    assert_same(run, calm)
    assert [event["cause"] for event in run.events("member_lost")] == ["killed by signal 9 (SIGKILL)"]
    assert not [event for event in run.events("warning") if "back from step" in event["message"]]
    whole_each_step = 36 * 3000 * 4 * 4  # bytes, of each worker
    assert run.summary()["bytes_sent"] < whole_each_step, "only touched rows travel"


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_a_server_of_an_asynchronous_run_dies(trials: Trials, replicas: str) -> None:
    hurt = with_servers_hurt(script(forward="rank() == 1 and step() >= 14 and kill_server()"))
    done, run = trials.train(hurt, *ASYNC, "--set", f"server.replicas={replicas}")
    assert done.status == 0, done.err
    assert_whole(run)


FREEZES = """
def freeze():
    if once("frozen"):
        (MARKS / "pid").write_text(f"{os.getpid()} ")
        os.kill(os.getpid(), signal.SIGSTOP)

def wake_it():
    "Once all other tasks of the epoch are begun."
    until(lambda: (MARKS / "pid").exists() and (MARKS / "pid").read_text().endswith(" "))
    if step() == 11 and once("woken"):
        os.kill(int((MARKS / "pid").read_text()), signal.SIGCONT)
"""


def test_nobody_waits_for_a_frozen_worker_of_an_asynchronous_run(trials: Trials) -> None:
    """Without it the others do all that there is until the next evaluation, however often they would have met."""
    hurt = "phase() == 'forward' and (freeze() if rank() == 2 else wake_it())"
    text = script(forward=hurt).replace("class Net", f"{FREEZES}\n\nclass Net")
    done, run = trials.train(text, *ASYNC, "--set", "elastic.lease_s=100")
    assert done.status == 0, done.err
    assert_whole(run)
    assert [event["number"] for event in run.events("view")] == [1], "nobody was put out"
    staleness = run.summary()["staleness"]
    assert staleness["max"] >= 9, "what it had begun with was as old as what the others had done meanwhile"
    assert sum(staleness["histogram"].values()) == 36


STANDS_STILL = """
import threading

def begin():
    "A task, once another worker is frozen in its first."
    until(lambda: (MARKS / "pid").exists() and (MARKS / "pid").read_text().endswith(" "))
    if once("waker"):
        threading.Thread(target=wake, daemon=True).start()
    (MARKS / f"begun-{step()}").touch()

def begun():
    return len(list(MARKS.glob("begun-*")))

def wake():
    until(lambda: begun() >= 6)
    time.sleep(0.6)  # in which they ask for a task twice
    (MARKS / "while-frozen").write_text(str(begun()))
    os.kill(int((MARKS / "pid").read_text()), signal.SIGCONT)
"""


def test_nobody_gets_further_ahead_of_a_frozen_worker_than_the_bound(trials: Trials) -> None:
    hurt = "phase() == 'forward' and (freeze() if rank() == 2 else begin())"
    text = script(forward=hurt).replace("class Net", f"{FREEZES}\n{STANDS_STILL}\n\nclass Net")
    words = ("--strategy", "parameter-server", "--servers", "2", "--workers", "3", "--set", "server.consistency=ssp:2")
    done, run = trials.train(text, *words, "--set", "elastic.lease_s=100")
    assert done.status == 0, done.err
    assert_whole(run)
    assert [event["number"] for event in run.events("view")] == [1], "nobody was put out"
    marks = run.path.parent / "marks"
    assert (marks / "while-frozen").read_text() == "6", "two ahead of it, and one task more, for each of the others"
    staleness, first = run.summary()["staleness"], run.events("step")[0]["staleness"]
    assert staleness["lead"] == 2
    assert 6 in first, "all that they have done meanwhile"
    assert staleness["max"] <= 2 * (2 * 2 + 1), "each of the others, from two behind to three ahead"
    assert sum(staleness["histogram"].values()) == 36


@pytest.mark.parametrize(
    "words",
    [
        ("--strategy", "parameter-server", "--workers", "2", "--set", "server.replicas=2"),
        ("--strategy", "hybrid", "--workers", "4", "--set", "hybrid.outer=parameter-server", "--set", "hybrid.team=2"),
    ],
    ids=["replicas", "teams"],
)
def test_all_workers_die_and_the_servers_live(trials: Trials, words: tuple[str, ...]) -> None:
    """What was done after the checkpoint is done again to what was loaded: no record of before stands for it."""
    how = {"norm": NORM, "settings": "checkpoint={'every': '5 steps'}, passes='grain',"}
    calm = trials.calm(script(**how), *words)
    done, run = trials.train(script(**how, forward=DIE_TOGETHER), *words)
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)


@pytest.mark.parametrize("keeps", ["rows", "whole tensors"])
def test_what_optimizers_keep_on_servers_goes_into_checkpoints_and_comes_back(trials: Trials, keeps: str) -> None:
    """Of a table, of which one server's rows are never touched; and by an optimizer that does not cut tensors."""
    words = ("--strategy", "parameter-server", "--servers", "2", "--workers", "1")

    def text(**how: str) -> str:
        made = script(settings="checkpoint={'every': '5 steps'},", **how)
        if keeps == "rows":
            return with_a_table(made, momentum=", momentum=0.9").replace("clamp(max=2999)", "clamp(max=99)")
        matrices = made.replace("nn.Linear(10, 16)", "nn.Linear(10, 16, bias=False)")
        matrices = matrices.replace("nn.Linear(16, 4)", "nn.Linear(16, 4, bias=False)")
        return re.sub(r"torch\.optim\.SGD\(.*?\)", "torch.optim.Muon(parameters, lr=0.02)", matrices)

    calm = trials.calm(text(), *words)
    done, run = trials.train(text(forward=DIE_TOGETHER), *words)
    assert done.status == 0, done.err
    assert_same(run, calm)
    by_rows = [event["message"] for event in run.events("warning") if "is a sparse table" in event["message"]]
    assert {words.split()[0] for words in by_rows} == ({"table.weight"} if keeps == "rows" else set()), by_rows
