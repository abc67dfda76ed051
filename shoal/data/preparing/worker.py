"""A process of the local engine: reads tasks from standard input, answers on what was its standard output.

It is started anew and never forked, so a parent that has used OpenMP does no harm. It ends with its input, and with its
parent however that ends. What the user's functions print goes to standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import sys
import traceback
from typing import Any, BinaryIO

LENGTH = struct.Struct("<Q")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main(parent: int) -> None:
    """Answer until there is nothing more to read."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks decides when to stop
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    settle_arrow()
    while (frame := read_frame(questions)) is not None:
        write_frame(answers, json.dumps(answer(frame)).encode())


def settle_arrow() -> None:
    """One thread, and memory that is given back: there is a process for each core, and each has its share."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with contextlib.suppress(NotImplementedError):  # on 5 GB it keeps 100 MB less than the system's allocator
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(0)


def die_with(parent: int) -> None:
    """Be killed when the parent ends, where the system can do that (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended meanwhile
        sys.exit(0)


def answer(frame: bytes) -> dict[str, Any]:
    """What became of a pickled task: its result, a mistake of the user's (`refused`), or a failure with its trace."""
    import cloudpickle

    from shoal.core.errors import UserError
    from shoal.data.preparing.task import perform

    try:
        return {"result": perform(cloudpickle.loads(frame))}
    except UserError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def read_frame(file: BinaryIO) -> bytes | None:
    """The next one, or None at the end."""
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (nbytes,) = LENGTH.unpack(head)
    data = file.read(nbytes)
    return data if len(data) == nbytes else None


def write_frame(file: BinaryIO, data: bytes) -> None:
    view = memoryview(LENGTH.pack(len(data)) + data)
    while view:
        view = view[file.write(view) :]
    file.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
