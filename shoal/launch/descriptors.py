"""How many files a process may have open: a run that has too few would end anywhere, with words that help nobody."""

from __future__ import annotations

import resource

from shoal.core.errors import UserError

_LEAST = 128  # Python, PyTorch, the coordinator's connections
_USUAL = 1024
_EACH = 8  # for a worker: its messages, its output, its process, its connections


def provide_descriptors(workers: int = 0) -> None:
    """See to it that this process, and those that it starts from now on, may open as many files as a run with so many
    workers on this host needs. Raises `UserError` where the machine does not allow that."""
    needed = _LEAST + _EACH * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= max(needed, _USUAL):
        return
    most = max(needed, _USUAL) if hard == resource.RLIM_INFINITY else min(hard, max(needed, _USUAL))
    if most < needed:
        raise UserError(
            f"a process may open only {hard} files here (`ulimit -Hn`), and this run needs about {needed}: raise the "
            f"limit, such as by `ulimit -n {max(needed, _USUAL)}` in a shell that may, or in /etc/security/limits.conf"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
