"""The keys of workers that keep a store among themselves: each is a server and a client, so each needs all of them."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import asdict
from pathlib import Path

from shoal.comm.keys import RunKeys
from shoal.core.errors import UserError


def make_run_keys(path: str | Path) -> RunKeys:
    """Make keys and write them to a file that only its owner can read. What is there already is read, so that every
    worker of one host may call it."""
    path = Path(path)
    keys = RunKeys.make()
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(keys), file)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, this does not replace what another worker has made
    finally:
        temporary.unlink()
    return read_run_keys(path)


def read_run_keys(path: str | Path) -> RunKeys:
    """Raises `UserError` if the file is missing, damaged, or open to others."""
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(4096)
    except OSError as error:
        raise UserError(f"cannot read the key file {path}: {error.strerror}") from None
    if mode & 0o077:
        raise UserError(f"the key file {path} can be read by others (mode {mode:04o}): run `chmod 600 {path}`")
    try:
        keys = RunKeys(**json.loads(text))
        if not all(isinstance(one, str) for one in asdict(keys).values()):
            raise ValueError
    except (ValueError, TypeError):
        raise UserError(f"the key file {path} is damaged: make a new one") from None
    return keys
