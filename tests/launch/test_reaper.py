"""The parent of workers and the zygote they are forked from: whoever of them dies, what is left is as it should be."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from shoal.launch.nursery import Nursery, NurseryEvent, ReaperLost
from shoal.launch.reaper import MAX_STILLBORN
from shoal.launch.zygote_messages import Exited, Forked, Ready, ZygoteRestarted

pytestmark = pytest.mark.ranks
DEADLINE_S = 60.0
E = TypeVar("E", bound=NurseryEvent)

CHILDREN = """
import os, signal

def wait(fds):  # until its descriptor is closed at the other end
    os.write(fds[0], b"x")
    os.read(fds[1], 1)
    os._exit(7)

def leave(fds):
    os._exit(len(fds))
"""


# in the process between zygote and children, the second fork fails
SCARCE = """
import os
zygote, fork, count = os.getpid(), os.fork, 0

def scarce():
    global count
    if os.getpid() == zygote:
        return fork()
    count += 1
    if count == 2:
        raise OSError("no room")
    return fork()

os.fork = scarce
"""


class Births:
    """A nursery whose zygote imports `children` alone, and what it has said."""

    def __init__(self, directory: Path, preload: Sequence[str] = ("children",)) -> None:
        (directory / "children.py").write_text(CHILDREN)
        (directory / "ends.py").write_text(
            f"import os; open({str(directory / 'begun')!r}, 'a').write('x'); os._exit(3)"
        )
        self._ends: list[int] = []
        self.nursery = Nursery(preload)
        self.heard: list[NurseryEvent] = []

    def until(self, kind: type[E], accept: Callable[[E], bool] = lambda event: True) -> E:
        """The first event of a kind, however long ago."""
        until = time.monotonic() + DEADLINE_S
        poll = select.poll()
        poll.register(self.nursery.fileno(), select.POLLIN)
        while True:
            for event in self.heard:
                if isinstance(event, kind) and accept(event):
                    return event
            assert time.monotonic() < until, f"no {kind.__name__}: {self.heard}"
            poll.poll(1000)
            self.heard += self.nursery.events()

    def wait(self) -> tuple[int, int, int]:
        """A child that waits: its key, and descriptors to hear that it is there and to let it go."""
        hear, theirs = os.pipe()
        held, let_go = os.pipe()
        key = self.nursery.fork("children:wait", [theirs, held])
        os.close(theirs)
        os.close(held)
        self._ends += [hear, let_go]
        return key, hear, let_go

    @property
    def zygote(self) -> psutil.Process:
        return self._named("shoal-zygote")

    @property
    def spare(self) -> psutil.Process:
        return self._named("shoal-spare")

    def _named(self, name: str) -> psutil.Process:
        """Who has this name and leads a session: a new child has the zygote's name, too, for a moment."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            for one in psutil.Process(self.nursery.pid).children():
                with contextlib.suppress(psutil.Error, ProcessLookupError):  # it has just ended
                    if one.name() == name and os.getsid(one.pid) == one.pid:
                        return one
        raise AssertionError(f"there is no {name}")

    def close(self) -> None:
        self.nursery.close()
        for fd in self._ends:
            os.close(fd)


@pytest.fixture
def births(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Births]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    found = Births(tmp_path)
    yield found
    found.close()


def forked(births: Births, key: int) -> int:
    return births.until(Forked, lambda event: event.key == key).pid


def exited(births: Births, key: int) -> int:
    return births.until(Exited, lambda event: event.key == key).code


def test_children_outlive_their_zygote_and_more_can_be_had(births: Births) -> None:
    births.until(Ready)
    key, hear, let_go = births.wait()
    assert os.read(hear, 1) == b"x"
    births.zygote.kill()
    assert births.until(ZygoteRestarted) == ZygoteRestarted(-signal.SIGKILL, 1)
    later, hear_later, _ = births.wait()
    assert os.read(hear_later, 1) == b"x"
    third = births.nursery.fork("children:leave", [0, 1])
    assert exited(births, third) == 2, "the spare was used up: this one comes from the new zygote"
    os.write(let_go, b"x")
    assert exited(births, key) == 7
    births.nursery.signal(later, signal.SIGKILL)
    assert exited(births, later) == -signal.SIGKILL
    assert len([event for event in births.heard if isinstance(event, Ready)]) == 1


def test_that_a_child_has_begun_is_told_before_it_can_say_anything(births: Births) -> None:
    births.until(Ready)
    for _ in range(5):
        key, hear, _ = births.wait()
        assert os.read(hear, 1) == b"x"
        assert [event.key for event in births.nursery.events() if isinstance(event, Forked)] == [key]


def test_forks_under_way_are_done_once_by_the_next_zygote(births: Births) -> None:
    births.until(Ready)
    births.zygote.suspend()  # what it is asked for is not done yet
    waiting = [births.wait() for _ in range(5)]
    births.zygote.kill()
    for key, hear, let_go in waiting:
        assert os.read(hear, 1) == b"x"
        assert not select.select([hear], [], [], 0)[0], "another child has the same descriptors"
        os.write(let_go, b"x")
        assert exited(births, key) == 7
    keys = [key for key, _, _ in waiting]
    assert sorted(event.key for event in births.heard if isinstance(event, Forked)) == keys
    assert sorted(event.key for event in births.heard if isinstance(event, Exited)) == keys


def test_no_child_of_a_killed_zygote_is_left_over(births: Births) -> None:
    """Killed at any moment of a fork: whoever was half forked is gone, and waited for."""
    births.until(Ready)
    for times in range(1, 6):
        keys = [births.nursery.fork("children:leave", []) for _ in range(4)]
        births.zygote.kill()
        births.until(ZygoteRestarted, lambda event, times=times: event.times == times)  # type: ignore[misc]
        assert [exited(births, key) for key in keys] == [0] * 4
    until = time.monotonic() + DEADLINE_S
    while True:
        names = []
        for one in psutil.Process(births.nursery.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                names.append(one.name())
        if sorted(names) == ["shoal-spare", "shoal-zygote"]:
            break
        assert time.monotonic() < until, names
        births.nursery.signal(keys[0], 0)  # it looks around whenever it is spoken to


def test_who_is_not_wanted_any_more_is_not_begun(births: Births) -> None:
    births.until(Ready)
    births.zygote.suspend()
    births.wait()  # takes the spare
    key, _, _ = births.wait()
    births.nursery.signal(key, signal.SIGTERM)
    assert exited(births, key) == -signal.SIGTERM
    births.zygote.resume()
    after = births.nursery.fork("children:leave", [])
    assert exited(births, after) == 0
    assert key not in [event.key for event in births.heard if isinstance(event, Forked)]


def test_a_zygote_that_never_gets_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    births = Births(tmp_path, ["ends"])
    try:
        assert births.until(ReaperLost).code == 3
        assert not [event for event in births.heard if isinstance(event, ZygoteRestarted)]
        assert len((tmp_path / "begun").read_text()) == MAX_STILLBORN
    finally:
        births.close()


def test_children_live_on_where_no_zygote_can_be_had_any_more(births: Births, tmp_path: Path) -> None:
    """Whoever is wanted meanwhile is refused in time; when there is a zygote again, all is as before."""
    births.until(Ready)
    key, hear, let_go = births.wait()
    assert os.read(hear, 1) == b"x"
    (tmp_path / "children.py").write_text("import os; os._exit(3)")  # what the next ones import
    births.zygote.kill()
    births.until(ZygoteRestarted)
    refused = [births.nursery.fork("children:leave", []) for _ in range(2)]  # the first may get the spare
    assert exited(births, refused[1]) == 71
    (tmp_path / "children.py").write_text(CHILDREN)
    again, hear_again, _ = births.wait()
    while exited(births, again) == 71 if not select.select([hear_again], [], [], DEADLINE_S)[0] else False:
        again, hear_again, _ = births.wait()
    os.write(let_go, b"x")
    assert exited(births, key) == 7, "it was killed with the zygotes"


def test_a_spare_that_was_killed_is_nobodys_loss(births: Births) -> None:
    births.until(Ready)
    spare = births.spare
    spare.kill()
    spare.wait(DEADLINE_S)  # until its parent has noticed
    keys = [births.nursery.fork("children:leave", [0]) for _ in range(3)]
    assert [exited(births, key) for key in keys] == [1, 1, 1]


def test_where_there_is_no_room_for_a_spare_the_wanted_child_is_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every two forks of one request the second fails."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "scarce.py").write_text(SCARCE)
    births = Births(tmp_path, ("children", "scarce"))
    try:
        births.until(Ready)
        for _ in range(5):
            assert exited(births, births.nursery.fork("children:leave", [])) == 0
    finally:
        births.close()


def test_all_children_die_with_their_parent(births: Births) -> None:
    births.until(Ready)
    waiting = [births.wait() for _ in range(3)]
    pidfds = [os.pidfd_open(forked(births, key)) for key, _, _ in waiting] + [os.pidfd_open(births.zygote.pid)]
    os.kill(births.nursery.pid, signal.SIGKILL)
    try:
        for pidfd in pidfds:
            assert select.select([pidfd], [], [], DEADLINE_S)[0]
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
    assert births.until(ReaperLost).code == -signal.SIGKILL


@pytest.mark.parametrize("unread", [False, True])
def test_it_ends_quietly_with_its_launcher(tmp_path: Path, unread: bool) -> None:
    """With a message unread the next read is a reset, not an end. Standard error is closed when all have ended."""
    script = textwrap.dedent(f"""
        import os, select
        from shoal.launch.nursery import Nursery
        nursery = Nursery(())
        select.select([nursery], [], [])
        nursery.events()
        if {unread}:
            nursery.fork("os:_exit", [])
            select.select([nursery], [], [])
        nursery._channel.close()
        nursery._process.wait(60)
        os._exit(0)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
