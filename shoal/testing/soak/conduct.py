"""Runs one case, command after command, and gathers what the judge needs to know of it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from shoal.core.errors import ShoalError
from shoal.drill.scene import Event, Tail
from shoal.launch.scaling import scale
from shoal.launch.stacks import take_stack
from shoal.testing.soak.case import Case
from shoal.testing.soak.history import ENDS
from shoal.testing.soak.hurting import MARKS, PIDS
from shoal.testing.soak.leftovers import Before, leftovers
from shoal.testing.soak.play import ORDER, READ, SCRIPT, SEEN
from shoal.testing.soak.seat import Seat
from shoal.testing.soak.seats import Seats
from shoal.testing.soak.way import Way

STALL_S = 60.0  # without a sign of life; beyond all that a fault may cost by the settings of a case
LONGEST_S = 240.0  # of one command
_AGAIN = "run the same command again"
_LOOK_S = 0.02
_SETTLE_S = 20.0  # of a scaling


@dataclass(frozen=True)
class Leg:
    """One command of a case. `status` None: its launcher was killed. `stacks`: of everyone, where it hung."""

    way: Way
    status: int | None
    out: str
    err: str
    seconds: float
    stacks: str = ""
    left: tuple[str, ...] = ()
    gap_s: float = 0.0  # the longest time without a sign of life

    @property
    def hung(self) -> bool:
        return bool(self.stacks)


@dataclass(frozen=True)
class Evidence:
    """What is left of a case when it is over. `hits`: the faults that came, as those who did it have written."""

    legs: tuple[Leg, ...]
    events: tuple[Event, ...]
    summary: dict[str, Any]
    config: dict[str, Any]
    hits: tuple[dict[str, Any], ...]
    seen: tuple[dict[str, Any], ...] = field(repr=False)  # passes of the model
    read: tuple[int, ...] = field(repr=False)  # samples that were read, where they tell
    run_dir: Path = Path()

    @property
    def last(self) -> Leg:
        return self.legs[-1]


def conduct(case: Case, place: Path, seats: Seats) -> Evidence:
    """Run a case in the new directory `place`. Takes as long as it takes, but nothing waits for ever."""
    for folder in (MARKS, PIDS, SEEN, READ):
        (place / folder).mkdir(parents=True)
    (place / "script.py").write_text(SCRIPT)
    legs: list[Leg] = []
    while True:
        legs.append(_leg(case, case.way_of(len(legs)), len(legs), place, seats))
        if legs[-1].hung or legs[-1].left or legs[-1].status is None:
            seats.drop()
        if not goes_on(legs, _marks(place)):
            break
    return gather(place, legs)


def goes_on(legs: Sequence[Leg], hits: Sequence[dict[str, Any]]) -> bool:
    """Whether the last command was ended by a fault that came while it ran and that ends commands: then the same is
    given again. Every fault comes once, so there is an end to it."""
    if legs[-1].status == 0 or legs[-1].hung:
        return False
    ends: tuple[str, ...] = ENDS
    if _AGAIN in legs[-1].err:  # as the documentation says: a loop of one's own cannot go back by itself
        ends = (*ends, "server", "freeze-server", "all")
    return any(hit["kind"] in ends and hit["leg"] == len(legs) - 1 for hit in hits)


def _leg(case: Case, way: Way, number: int, place: Path, seats: Seats) -> Leg:
    seat = seats.get()
    before = Before.look(seat)
    (place / ORDER).write_text(json.dumps({"case": case.text(), "leg": number}))
    out, err = place / f"out-{number}", place / f"err-{number}"
    begun = time.monotonic()
    seat.start(place, ["train", "script.py", *way.words(), "--run-dir", "run"], out, err)
    status, stacks, gap = _watch(seat, place)
    left = () if stacks else leftovers(seat, before)
    return Leg(way, status, _text(out), _text(err), time.monotonic() - begun, stacks, tuple(left), gap)


def _watch(seat: Seat, place: Path) -> tuple[int | None, str, float]:
    """Follow a command to its end: its status, the stacks of all if it had to be given up, the longest silence."""
    tail, begun = Tail(place / "run" / "events.jsonl"), time.monotonic()
    tail.read()
    heard, longest, scaling = begun, 0.0, _Scaling(place)
    while True:
        answer = seat.answer(_LOOK_S)
        now = time.monotonic()
        longest = max(longest, now - heard)
        if answer is not None:
            scaling.end()
            return answer.status, "", longest
        if tail.read() or scaling.look():
            heard = now
        if now - heard > STALL_S or now - begun > LONGEST_S:
            stacks = _stacks(seat)
            seat.close()
            return None, stacks, longest


class _Scaling:
    """Does what a worker cannot do from within: asks for another number of workers, when one wants that."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._begun: set[str] = set()
        self._threads: list[threading.Thread] = []

    def look(self) -> bool:
        """Whether there was something new."""
        wanted = [path for path in (self._place / MARKS).glob("*.wanted") if path.name not in self._begun]
        for path in wanted:
            self._begun.add(path.name)
            workers = path.read_text()
            if workers:
                thread = threading.Thread(target=self._scale, args=(path, int(workers)), daemon=True)
                thread.start()
                self._threads.append(thread)
        return bool(wanted)

    def _scale(self, path: Path, workers: int) -> None:
        done = threading.Timer(1.0, path.with_suffix(".done").touch)  # it is asked for by then, and steps must go on
        done.start()
        try:
            scale(self._place / "run", workers, _SETTLE_S)
        except ShoalError as error:
            path.with_suffix(".refused").write_text(str(error))
        finally:
            done.join()

    def end(self) -> None:
        for thread in self._threads:
            thread.join()


def _stacks(seat: Seat) -> str:
    """What everyone is doing, to see who waits for whom."""
    told = []
    for process in seat.below():
        told.append(f"process {process.pid} {_name(process)}:\n{take_stack(process.pid) or '(not to be had)'}")
    return "\n".join(told) or "(nobody is left)"


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):  # gone meanwhile
        return str(process.name())
    return ""


def _marks(place: Path) -> list[dict[str, Any]]:
    files = sorted(path for path in (place / MARKS).iterdir() if path.name.isdigit())
    return sorted((json.loads(path.read_text()) for path in files), key=lambda mark: float(mark["time"]))


def gather(place: Path, legs: list[Leg]) -> Evidence:
    """What the commands of a case have left in its directory."""
    run = place / "run"
    return Evidence(
        legs=tuple(legs),
        events=tuple(Tail(run / "events.jsonl").read()),
        summary=_read(run / "summary.json", json.loads),
        config=_read(run / "config.yaml", _yaml),
        hits=tuple(_marks(place)),
        seen=tuple(json.loads(line) for line in _lines(place / SEEN)),
        read=tuple(int(line) for line in _lines(place / READ)),
        run_dir=run,
    )


def _lines(folder: Path) -> list[str]:
    """All whole lines of all files; a process that was killed may have left half a one."""
    return [line for path in folder.iterdir() for line in path.read_text().rpartition("\n")[0].splitlines()]


def _read(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        return dict(parse(path.read_text()))
    except (OSError, ValueError):
        return {}


def _yaml(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
