"""Started by test_checkpoint_kill: forks processes that save until they are killed.

Each line on standard input is a directory and a number: 0 to save for ever, n to save twice and be killed at
the nth file operation. Answers ``child PID``, ``saved STEP`` for each checkpoint that the writer has told of,
and ``ended STATUS``; one that saves for ever says ``ready`` first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.argv = ["/bin/shoal"]  # nothing of torch may run here: the children are forked

import torch  # noqa: E402 - imported here, once, for all children
from checkpoint_cases import cursor_at, state_at  # noqa: E402

from shoal.checkpoint.catalog import Catalog, name_of  # noqa: E402
from shoal.checkpoint.writer import Writer  # noqa: E402

FILE_OPERATIONS = {
    "open",
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.scandir",
    "fcntl.flock",
    "ctypes.dlsym",
}


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def refuse(line: str) -> None:
    say(f"damaged {line}")
    os._exit(3)


def save(writer: Writer, step: int) -> None:
    writer.save(
        name_of(step),
        [state_at(step, elements=50_000)],
        cursor_at(step),
        {"step": step, "test_loss": step % 7},
    )
    for saved in writer.poll():
        say(f"saved {saved.cursor.step}")


def save_for_ever(directory: Path) -> None:
    catalog = Catalog(directory)
    catalog.clean()
    newest = catalog.newest_valid(refuse)
    step = newest.cursor.step if newest is not None else 0
    writer = Writer(directory)
    say("ready")
    while True:
        step += 1
        save(writer, step)
        if step % 3 == 0:
            save(writer, step)  # replaces the one just written


def save_and_die_at(directory: Path, operation: int) -> None:
    main = threading.get_ident()
    left = operation

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in FILE_OPERATIONS and threading.get_ident() != main:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    writer = Writer(directory)
    sys.addaudithook(count)
    for _ in range(2):
        save(writer, 3)
        writer.flush(60)
    for saved in writer.poll():
        say(f"saved {saved.cursor.step}")


def main() -> None:
    for line in sys.stdin:
        directory, operation = line.rstrip("\n").rsplit(" ", 1)
        pid = os.fork()
        if pid == 0:
            status = 4
            try:
                torch.set_num_threads(1)
                if operation == "0":
                    save_for_ever(Path(directory))
                else:
                    save_and_die_at(Path(directory), int(operation))
                status = 0
            finally:
                os._exit(status)
        say(f"child {pid}")
        _, status = os.waitpid(pid, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
