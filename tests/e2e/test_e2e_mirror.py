"""`--mirror`: a run whose directory is lost goes on from a second place, and nobody can tell afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import Done, Process, Run, Shoal, descendants, eventually
from e2e_script import SCRIPT, STEPS_PER_EPOCH

pytestmark = pytest.mark.ranks

WORDS = ("--workers", "2", "--epochs", "3")


@pytest.fixture
def whole(shoal_here: Shoal) -> tuple[str, dict[str, int]]:
    """What comes out of a run that nobody interrupts."""
    shoal_here.write(SCRIPT)
    assert shoal_here.train(*WORDS, "--run-dir", "whole").status == 0
    return Run(shoal_here.directory / "whole").outcome()


def mirrored(run: Run, status: str) -> list[str]:
    return [event["checkpoint"] for event in run.events("mirror") if event["status"] == status]


def train(here: Shoal, *more: str) -> Done:
    done = here.train(*WORDS, "--run-dir", "run", "--mirror", "mirror", *more)
    assert done.status == 0, done
    return done


def kill_mid_epoch(process: Process, run: Run) -> None:
    """As soon as the mirror has a checkpoint from the middle of an epoch; then the run directory is lost, too."""

    def arrived() -> bool:
        copied = mirrored(run, "copied")
        return not process.running() or (len(copied) >= 3 and int(copied[-1][-8:]) % STEPS_PER_EPOCH > 1)

    eventually(arrived)
    assert process.running(), process.err
    for pid in [process.pid, *descendants(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.end()
    shutil.rmtree(run.path)


def gone_on(done: Done, run: Run) -> None:
    assert done.status == 0, done
    (resumed,) = mirrored(run, "resumed")
    assert int(resumed[-8:]) % STEPS_PER_EPOCH != 0, "in the middle of an epoch"
    assert f"from {resumed} of the mirror" in done.out
    assert run.events("run_started")[0]["cursor"]["step"] == int(resumed[-8:])


EVERY_STEP = ("--set", "checkpoint.every=1 step")
SLOWLY = ("--set", "elastic.pace_s=0.05")


def test_a_run_that_is_killed_and_whose_directory_is_lost_goes_on_from_the_mirror(
    shoal_here: Shoal, whole: tuple[str, dict[str, int]], shoal_process: Callable[..., Process]
) -> None:
    run, words = shoal_here.run, (*WORDS, "--run-dir", "run", "--mirror", "mirror", *EVERY_STEP)
    with shoal_process("script.py", *words, *SLOWLY) as process:
        kill_mid_epoch(process, run)
    gone_on(shoal_here.train(*words), run)
    assert run.outcome() == whole


def test_it_goes_on_from_a_mirror_on_s3(
    s3: str, shoal_here: Shoal, whole: tuple[str, dict[str, int]], shoal_process: Callable[..., Process]
) -> None:
    run, words = shoal_here.run, ("script.py", *WORDS, "--run-dir", "run", "--mirror", f"{s3}/runs/one", *EVERY_STEP)
    with shoal_process(*words, *SLOWLY) as process:
        kill_mid_epoch(process, run)
    with shoal_process(*words) as process:
        gone_on(process.end(), run)
    assert run.outcome() == whole


def test_the_newer_one_of_both_places_wins_and_that_is_said(
    shoal_here: Shoal, whole: tuple[str, dict[str, int]]
) -> None:
    run, mirror = shoal_here.run, shoal_here.directory / "mirror"
    train(shoal_here, "--epochs", "2")
    assert run.names() == ["step-00000012", "step-00000024"]
    shutil.rmtree(run.checkpoints / "step-00000024")
    done = train(shoal_here, "--epochs", "2")
    assert f"from step-00000024 of the mirror {mirror}: it is newer than step 12 here" in done.out
    shutil.rmtree(mirror / "step-00000024")
    done = train(shoal_here)
    assert f"not from step-00000012 of the mirror {mirror}: step 24 here is newer" in done.out
    assert run.outcome() == whole
    assert sorted(entry.name for entry in mirror.iterdir()) == ["run.json", "step-00000024", "step-00000036"]


def test_a_damaged_one_is_named_and_an_older_one_taken(shoal_here: Shoal, whole: tuple[str, dict[str, int]]) -> None:
    run, mirror = shoal_here.run, shoal_here.directory / "mirror"
    train(shoal_here, "--epochs", "2")
    shutil.rmtree(run.path)
    damaged = next((mirror / "step-00000024").glob("*.safetensors"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    done = train(shoal_here)
    assert f"checkpoint step-00000024 of the mirror is passed over: {damaged} is damaged" in done.out
    assert mirrored(run, "resumed") == ["step-00000012"]
    assert run.outcome() == whole


def test_all_damaged_is_refused(shoal_here: Shoal, whole: object) -> None:
    train(shoal_here, "--epochs", "1")
    shutil.rmtree(shoal_here.run.path)
    for path in (shoal_here.directory / "mirror").glob("step-*/*.safetensors"):
        path.unlink()
    message = shoal_here.train(*WORDS, "--run-dir", "run", "--mirror", "mirror").err
    assert "every checkpoint in" in message
    assert "is damaged: choose another --run-dir and another --mirror to start anew" in message


def test_a_mirror_that_cannot_be_used_is_told_before_anything_is_written(shoal_here: Shoal) -> None:
    shoal_here.write(SCRIPT)
    (shoal_here.directory / "photos").mkdir()
    (shoal_here.directory / "photos" / "sea.jpg").write_bytes(b"x")

    def message(mirror: str, *more: str) -> str:
        done = shoal_here.train(*WORDS, "--run-dir", "run", "--mirror", mirror, *more)
        assert done.status == 2, done
        assert "Traceback" not in done.err
        assert not shoal_here.run.path.exists()
        return done.err

    assert "xyz://a/b/run.json cannot be opened: Protocol not known: xyz" in message("xyz://a/b")
    assert "the mirror hdfs://127.0.0.1:9/runs does not answer" in message("hdfs://127.0.0.1:9/runs")
    assert "photos holds files, but is no mirror of a run" in message("photos")
    assert "lies in the run directory" in message("run/mirror")
    assert "but every=never writes none" in message("mirror", "--set", "checkpoint.every=never")


def test_the_mirror_of_another_run_is_refused(shoal_here: Shoal, whole: object) -> None:
    train(shoal_here, "--epochs", "1")
    done = shoal_here.train(*WORDS, "--run-dir", "other", "--mirror", "mirror", "--seed", "7")
    assert done.status == 2
    assert "mirror belongs to a run with seed=0, but now seed=7: run it with the old value, or choose" in done.err
    assert shoal_here.train(*WORDS, "--run-dir", "third", "--epochs", "1").status == 0
    done = shoal_here.train(*WORDS, "--run-dir", "third", "--mirror", "mirror")
    assert done.status == 2
    assert "is the mirror of another run than that in" in done.err


def test_a_full_mirror_is_told_once_and_does_not_stop_training(
    shoal_here: Shoal, whole: tuple[str, dict[str, int]], make_disk: Callable[[str], Path]
) -> None:
    mirror = make_disk("16k") / "mirror"
    more = ("--set", "checkpoint.mirror_wait_s=1.5", "--set", "checkpoint.keep_best=0")
    done = shoal_here.train(*WORDS, "--run-dir", "run", "--mirror", str(mirror), *more)
    assert done.status == 0, done
    assert done.out.count("no space left there: free some. It is tried again; training goes on") == 1
    assert done.out.count("Run the same command again to copy it") == 1
    assert re.search(r"copying step-00000036 to \S*/disk/mirror: \d+%", done.out)
    assert shoal_here.run.outcome() == whole


def test_after_ctrl_c_the_mirror_has_what_the_run_goes_on_from(
    shoal_here: Shoal, whole: tuple[str, dict[str, int]]
) -> None:
    run = shoal_here.run
    words = (*WORDS, "--run-dir", "run", "--mirror", "mirror")
    assert shoal_here.train(*words, "--", "--signal", "17").status == 130
    (last,) = [event["checkpoint"] for event in run.events("mirror")][-1:]
    assert int(last[-8:]) >= 17
    shutil.rmtree(run.path)
    train(shoal_here)
    assert mirrored(run, "resumed") == [last]
    assert run.outcome() == whole


KILLED = """
class Kill(shoal.callbacks.Callback):
    def on_step(self, event, run):
        if event.cursor.step == 15 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


trainer = shoal.Trainer("""


def test_who_takes_over_from_a_killed_first_worker_goes_on_copying(
    shoal_here: Shoal, whole: tuple[str, dict[str, int]]
) -> None:
    script = SCRIPT.replace("trainer = shoal.Trainer(", KILLED.lstrip()).replace("[CtrlC()]", "[CtrlC(), Kill()]")
    shoal_here.write(script)
    run = shoal_here.run
    train(shoal_here, "--set", "checkpoint.every=1 step")
    assert len(run.events("member_lost")) == 1
    assert run.outcome()[1] == whole[1]
    kept = sorted(entry.name for entry in (shoal_here.directory / "mirror").iterdir())
    assert kept[-1] == "step-00000036"
    assert len(kept) <= 4


def test_a_script_with_two_fits_has_a_mirror_for_each(shoal_here: Shoal) -> None:
    shoal_here.write(SCRIPT.rstrip() + "\ntrainer.fit()\n")
    train(shoal_here, "--epochs", "1")
    first = Run(shoal_here.directory / "run").summary()["params_sha256"]
    second = Run(shoal_here.directory / "run" / "fit-2").summary()["params_sha256"]
    shutil.rmtree(shoal_here.directory / "run")
    train(shoal_here, "--epochs", "1")
    assert Run(shoal_here.directory / "run").summary()["params_sha256"] == first
    assert Run(shoal_here.directory / "run" / "fit-2").summary()["params_sha256"] == second
