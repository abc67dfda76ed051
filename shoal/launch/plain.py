"""A process that the user started with ``python script.py``: what a launcher would have settled is settled here.

Initial weights are a function of the seed only if PyTorch's generator is seeded before the script builds its model,
and importing this package is the one thing that certainly comes before. Whoever seeds the generator wins.
"""

from __future__ import annotations

import sys
from types import TracebackType

from shoal.core.errors import UserError, WorkerFailed
from shoal.core.seeds import init_seed

_UNSEEDED_FROM = 1 << 32  # PyTorch's own start value has 53 random bits; people choose small seeds


def settle_plain_process() -> None:
    """Seed an unseeded generator as a worker's is by default, and show a user's mistakes without a traceback."""
    try:
        import torch
    except ModuleNotFoundError:  # a client of the key-value store needs none
        pass
    else:
        if torch.initial_seed() >= _UNSEEDED_FROM:
            torch.manual_seed(init_seed(0))
    previous = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, UserError | WorkerFailed):
            previous(kind, error, traceback)
            return
        # what a worker's failure says begins with who failed, and has the user's frames
        print(error if isinstance(error, WorkerFailed) else f"shoal: error: {error}", file=sys.stderr)
        if not hasattr(sys, "ps1") and not sys.flags.interactive:  # at a prompt, life goes on
            sys.exit(error.exit_status)

    sys.excepthook = show
