"""How one process of a store says no to another. These travel by their names and mean: nothing was done here."""

from __future__ import annotations


class TurnedAway(Exception):  # noqa: N818 - control flow between processes
    """Base of all of them."""


class NotPrimary(TurnedAway):
    """To a client: this process does not hold the post, any more or yet. Ask who does, under the same number."""


class Lagging(TurnedAway):
    """To a client whose time is up: it is done here, and these have not acknowledged it."""


class WentBack(TurnedAway):
    """To a client: the state has gone back to a snapshot since it last looked."""


class OldTerm(TurnedAway):
    """To a primary: somebody has taken over. What comes from an earlier one is not taken."""


class OutOfStep(TurnedAway):
    """To a primary: this change does not follow the last one, so that this copy has to be brought up anew. To a client:
    this copy is not kept in step any more."""
