"""Writing a whole state from outside, at the start of a run or from a checkpoint: what was before is void then."""

from __future__ import annotations

from shoal.store.answers import Eras
from shoal.store.asking import maker
from shoal.store.futures import gather
from shoal.store.operations import Begin, Era, GetEras
from shoal.store.transactions import Transactions


class Renewing(Transactions):
    """The part of `KVStore` for states that are written anew. A client whose `era` is set makes its changes in that era
    only: they raise `StateReplaced` once another has begun."""

    def eras(self, deadline_s: float | None = None) -> dict[str, int]:
        """By run, the highest number of an era that any server knows."""
        futures = [self._read(post, GetEras(), "eras", deadline_s) for post in range(self.servers)]
        found: dict[str, int] = {}
        answers: list[Eras] = self._wait(gather(futures, list), deadline_s)
        for answer in answers:
            for run, number in answer.numbers.items():
                found[run] = max(number, found.get(run, 0))
        return found

    def renew(self, run: str, above: int = 0, deadline_s: float | None = None) -> Era:
        """Begin another era of `run`, with a number over `above` and all that the servers know. Whatever was done in
        those before is void when this returns; what it raises leaves no era that anybody is in, and is done anew.
        `era` is not set by it: write the state, then tell all that shall work with it."""
        era = Era(run, 1 + max(above, *self.eras(deadline_s).values(), 0))
        make = maker(Begin, run=era.run, number=era.number)
        # The first server decides what is committed. From here on that is nothing of an earlier era, and what was must
        # come to the others before they refuse it: all of them count the same commits.
        self._wait(self._change(0, make, "begin an era", deadline_s, as_made=True), deadline_s)
        self._bring_all(deadline_s)
        others = range(1, self.servers)
        futures = [self._change(post, make, "begin an era", deadline_s, as_made=True) for post in others]
        self._wait(gather(futures, lambda answers: None), deadline_s)
        return era
