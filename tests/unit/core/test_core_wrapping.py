"""Messages on a terminal are broken between words; what is there to be copied is not broken at all."""

from __future__ import annotations

import io
import os
import pty

import pytest

from shoal.core.wrapping import for_stream, wrap

pytestmark = pytest.mark.unit
MESSAGE = (
    "shoal: error: no run answers at 10.0.0.5:7000: is it still running, was it started with --listen, is keys/key its "
    "key (a run has a new one at every start), and is that port open to this host? `shoal doctor --hosts a,b,c,d,e` "
    "compares them; else try --set comm.timeout_s=600.0 or pip install 'shoal[tensorboard]', and look again"
)
COPIED = ("`shoal doctor --hosts a,b,c,d,e`", "--set comm.timeout_s=600.0", "pip install 'shoal[tensorboard]'")


@pytest.mark.parametrize("width", [*range(60, 130), 400])
def test_lines_fit_and_nothing_is_lost(width: int) -> None:
    lines = wrap(MESSAGE, width).split("\n")
    assert all(len(line) <= width for line in lines)
    assert " ".join(lines) == MESSAGE
    for words in COPIED:
        assert any(words in line for line in lines), words


def test_what_is_copied_stays_whole_though_it_is_longer_than_a_line() -> None:
    command = "`shoal train digits.py " + "--set clip.norm=1.0 " * 5 + "--run-dir runs/digits`"
    assert wrap(f"to go on, run {command} and wait for it to come to its end, please", 80).split("\n")[1] == command
    indented = "  shoal join 10.0.0.5:7000 --key-file " + "very/" * 20 + "long/key"
    assert wrap(f"other hosts join with this line:\n{indented}", 80).endswith(indented)
    trace = 'shoal: worker 1 failed\n\n  File "a.py", line 3, in f\n    raise ValueError(' + "x" * 100 + ")"
    assert wrap(trace, 80) == trace


def test_only_a_terminal_breaks_lines() -> None:
    assert for_stream(MESSAGE, io.StringIO()) == MESSAGE
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        assert for_stream(MESSAGE, terminal) == wrap(MESSAGE, 80) != MESSAGE
    os.close(ours)
