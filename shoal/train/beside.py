"""Several runs of one script that are open at the same time, as a loop of one's own may have them (a GAN).

They follow each other in the numbers of views and of fits, so the coordinator takes the last that has begun for the
current one. What a run keeps with the coordinator or with servers is that of the current run only; and no view can be
left in the middle of two. So runs that need the first are refused, and others survive no loss.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import UserError
from shoal.launch.session import Session
from shoal.strategies.base import Strategy


@dataclass(eq=False)
class OpenRun:
    """A run that has begun and not ended. `beside`: another one was open at the same time, at some time."""

    strategy: str
    alone: bool  # it needs to be
    beside: bool = False


def begin_beside(session: Session, strategy: Strategy[Any], closing: contextlib.ExitStack) -> OpenRun:
    """A run begins in this process, until `closing`. Raises `UserError` where another is open that it cannot be beside:
    on all workers, since they run the same script."""
    mine = OpenRun(strategy.name, strategy.needs.servers or strategy.needs.leases)
    lonely = next((run for run in (mine, *session.open_runs) if run.alone), None)
    if session.open_runs and lonely is not None:
        raise UserError(
            f"strategy={lonely.strategy} trains one run at a time, and an earlier run of this script is not finished: "
            "call its finish(), or end its `with` block, before the next one begins; or, to train several models in "
            "turns, use strategy=allreduce"
        )
    for run in (mine, *session.open_runs):
        run.beside = run.beside or bool(session.open_runs)
    session.open_runs.append(mine)
    closing.callback(session.open_runs.remove, mine)
    return mine
