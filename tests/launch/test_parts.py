"""The small parts of the launcher: what a worker is told, parcels, output, signals."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from shoal.core.config import Clip
from shoal.core.length import Length
from shoal.launch.interrupts import Interrupts
from shoal.launch.job import Job, WorkerSpec
from shoal.launch.output import WorkerLog
from shoal.launch.parcel import pack, unpack

pytestmark = pytest.mark.unit


def test_a_specification_survives_its_journey() -> None:
    layers = (("--config a.yaml", {"seed": 1, "clip": {"norm": 1.0}}), ("flags", {"seed": 2}))
    spec = WorkerSpec(1, 3, 2, 2, "s.py", ("-x", "ü"), layers, "dry-run", True, "/meet", "/work", ("/a", "/b"))
    assert WorkerSpec.from_json(spec.to_json()) == spec


def test_settings_with_values_of_their_own_are_written_plainly() -> None:
    layers = (("fit(...)", {"clip": Clip(norm=1.0), "eval_every": Length(2, "epochs")}),)
    spec = WorkerSpec(0, 1, 1, 0, None, (), layers, "train", False, "", "/", ())
    assert WorkerSpec.from_json(spec.to_json()).layers == (
        ("fit(...)", {"clip": {"norm": 1.0}, "eval_every": "2 epochs"}),
    )


@pytest.mark.parametrize(
    ("seeds", "expected"), [((), 0), ((3,), 3), ((3, 4), 4), ((3, None), 3), (("5",), 5), (("x",), 0)]
)
def test_the_last_stated_seed_counts(seeds: tuple[object, ...], expected: int) -> None:
    assert Job(1, "s.py", layers=tuple(("layer", {"seed": seed}) for seed in seeds)).seed == expected


def test_a_parcel_can_be_opened_by_several_and_leaves_no_descriptor() -> None:
    data = os.urandom(300_000)
    fd = pack(data)
    other = os.dup(fd)
    assert unpack(fd) == data
    assert unpack(other) == data
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_log_holds_its_output_until_it_has_a_place(tmp_path: Path) -> None:
    log = WorkerLog("worker-2")
    os.write(log.theirs, b"early\n")
    assert log.pump()
    assert list(tmp_path.iterdir()) == []
    log.open(tmp_path)
    os.write(log.theirs, b"late\n")
    log.close_theirs()
    assert not log.pump()
    assert (tmp_path / "worker-2.log").read_text() == "early\nlate\n"
    assert log.last_words().endswith("worker-2.log):\n  early\n  late")
    log.close()
    log.close()


def test_a_log_on_a_full_disk_does_not_end_a_run(tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").symlink_to("/dev/full")  # opens, and has no space
    (tmp_path / "worker-2.log").mkdir()  # cannot even be opened
    for name in ("worker-1", "worker-2"):
        log = WorkerLog(name)
        os.write(log.theirs, b"early\n")
        assert log.pump()
        log.open(tmp_path)
        os.write(log.theirs, b"late\n")
        log.close_theirs()
        assert not log.pump()
        assert log.last_words().endswith("\n  early\n  late"), "what cannot be written can still be shown"
        log.close()


def test_signals_are_taken_in_and_handlers_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts() as interrupts:
        assert interrupts.take() == []
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert sorted(interrupts.take()) == [signal.SIGINT, signal.SIGTERM]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.take() == []
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    handlers: list[object] = []

    def look() -> None:
        with Interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    assert handlers == [signal.getsignal(signal.SIGINT)]
