"""Transactions over several servers: staged on each, then committed on the first, which decides, and on the others.

Whoever dies in between leaves nothing half done for long: the first server remembers the commits, the others still hold
the staged parts, and any survivor can `settle`: what the first has committed is committed everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace

from shoal.store.answers import Committed, Logged, Recalled, Record, Recorded, Squares, StagedParts
from shoal.store.asking import Maker, maker
from shoal.store.checking import Given
from shoal.store.errors import ServerTimeout, StoreRefused
from shoal.store.futures import gather
from shoal.store.operations import Commit, Drop, Era, Forget, Norms, Recall, Records, Shaping, Stage, Staged, Task
from shoal.store.updater_states import UpdaterStates

_TURN_S = 0.05  # a commit waits so long for those before it on other servers; then they are done for their committers
_NONE_AFTER = 1 << 62  # no commit has such a number


class Transactions(UpdaterStates):
    """The part of `KVStore` for updates that take effect together or not at all."""

    def stage(
        self, transaction: str, part: int, given: Mapping[str, Given], deadline_s: float | None = None
    ) -> Future[None]:
        """Leave a part of a transaction with the servers, unapplied. Arrays must not change before it is done."""
        updates = self.cut(given, deadline_s)
        futures = [
            # an empty part is a part: a commit names the same parts on all servers
            self._change(
                post,
                maker(Stage, transaction=transaction, part=part, updates=updates.get(post, ())),
                f"stage part {part} of {transaction}",
                deadline_s,
            )
            for post in range(self.servers)
        ]
        return self._note(gather(futures, lambda answers: None))

    def norms(
        self,
        transaction: str,
        parts: Iterable[int],
        shaping: Shaping = Shaping(),  # noqa: B008 - a frozen value
        deadline_s: float | None = None,
    ) -> float:
        """Sum of the squares of what would be applied, over all servers: for clipping by the global norm."""
        operation = Norms(transaction, tuple(parts), shaping)
        futures = [self._read(post, operation, f"norms of {transaction}", deadline_s) for post in range(self.servers)]
        answers: list[Squares] = self._wait(gather(futures, list), deadline_s)
        return sum(answer.squares for answer in answers)

    def commit(  # noqa: PLR0913 - all of it is one act
        self,
        transaction: str,
        parts: Iterable[int],
        *,
        rates: tuple[float, ...] = (),
        shaping: Shaping = Shaping(),  # noqa: B008 - a frozen value
        record: bytes = b"",
        read_version: int | None = None,
        damping: bool = False,
        task: Task | None = None,
        deadline_s: float | None = None,
    ) -> Committed:
        """Apply these parts, everywhere. Returns what the first server has made of it. When this returns, all servers
        have it; when it raises after the first one has it, `settle` brings it to the others.

        Raises `StoreRefused` if the first server does not commit it: nothing is changed then, and parts stay staged.
        """
        what = f"commit of {transaction}"
        first = maker(
            Commit, transaction=transaction, parts=tuple(parts), rates=rates, shaping=shaping, record=record,
            read_version=read_version, damping=damping, task=task,
        )  # fmt: skip
        decided: Committed = self._wait(self._change(0, first, what, deadline_s), deadline_s)
        others = maker(
            Commit,
            transaction=transaction,
            parts=tuple(parts),
            rates=rates,
            shaping=replace(shaping, rate_scale=decided.rate_scale),
            number=decided.number,
        )
        self._commit_on_others(others, decided.number, what, self._deadline(deadline_s))
        return decided

    def _commit_on_others(self, make: Maker, number: int, what: str, deadline_s: float) -> None:
        """Commits come in the order of the first server. If one before this one does not come, its committer is gone,
        or asleep: then it is done for it."""
        until_s = time.monotonic() + deadline_s
        posts = list(range(1, self.servers))
        while posts:
            futures = {
                post: self._change(post, make, what, min(_TURN_S, deadline_s), waits=True, stream="/commit")
                for post in posts
            }
            posts = []
            for post, future in futures.items():
                try:
                    self._wait(future, deadline_s)
                except StoreRefused as no:
                    if no.reason != "out of turn":
                        raise
                    posts.append(post)
            for post in posts:
                if time.monotonic() > until_s:
                    raise ServerTimeout(what, f"the commits before it on server {post}", deadline_s)
                self._bring(post, self._last(post, deadline_s), number - 1, max(1.0, until_s - time.monotonic()))

    def _last(self, post: int, deadline_s: float | None) -> int:
        """The number of the last commit on this server."""
        has: Recalled = self._wait(self._read(post, Recall(_NONE_AFTER), "recall", deadline_s), deadline_s)
        return has.last

    def _bring(self, post: int, last: int, upto: int, deadline_s: float | None) -> None:
        """Commit on this server what the first one has committed after `last`, up to `upto`."""
        if last < upto:
            for one in self.committed(last, deadline_s):
                if one.number <= upto:
                    self._redo(post, one, deadline_s)

    def drop(self, transaction: str, part: int | None = None, deadline_s: float | None = None) -> None:
        """Throw away what is staged for a transaction: all of it, or one part."""
        make = maker(Drop, transaction=transaction, part=part)
        futures = [self._change(post, make, f"drop {transaction}", deadline_s) for post in range(self.servers)]
        self._wait(gather(futures, lambda answers: None), deadline_s)

    def staged(self, deadline_s: float | None = None) -> dict[str, set[int]]:
        """Transactions that are staged on some server, and which of their parts."""
        futures = [self._read(post, Staged(), "staged", deadline_s) for post in range(self.servers)]
        found: dict[str, set[int]] = {}
        answers: list[StagedParts] = self._wait(gather(futures, list), deadline_s)
        for answer in answers:
            for transaction, parts in answer.transactions:
                found.setdefault(transaction, set()).update(parts)
        return found

    def committed(self, after: int = 0, deadline_s: float | None = None) -> tuple[Logged, ...]:
        """The commits that the first server remembers, oldest first, later than number `after`."""
        answer: Recalled = self._wait(self._read(0, Recall(after), "recall", deadline_s), deadline_s)
        return answer.commits

    def forget(self, upto: int, deadline_s: float | None = None) -> None:
        """Everyone knows of the commits up to this number: they need not be remembered."""
        make = maker(Forget, upto=upto)
        # the first server first: what it remembers, the others have, or still hold staged
        self._wait(self._change(0, make, "forget", deadline_s), deadline_s)
        futures = [self._change(post, make, "forget", deadline_s) for post in range(1, self.servers)]
        self._wait(gather(futures, lambda answers: None), deadline_s)

    def records(self, after: int = 0, era: Era | None = None, deadline_s: float | None = None) -> list[Record]:
        """What the commits that the first server remembers have recorded, oldest first, later than number `after`. With
        `era`, only those of that era: what others say of a step is not true of the state that there is now."""
        answer: Recorded = self._wait(self._read(0, Records(after, era), "records", deadline_s), deadline_s)
        return list(answer.each())

    def settle(
        self, abandoned: Callable[[str], bool] = lambda transaction: False, deadline_s: float | None = None
    ) -> None:
        """Bring all servers to what the first has committed, and drop staged transactions that are `abandoned`: not
        committed, and nobody is going to. Any number of survivors may do it at the same time."""
        self._bring_all(deadline_s)
        doomed = [name for name in self.staged(deadline_s) if abandoned(name)]
        # The first server decides: who was thought gone may have committed there just now, and what has lost its parts
        # there never will be. Only what it knows nothing of is dropped elsewhere.
        for name in doomed:
            self._wait(self._change(0, maker(Drop, transaction=name), f"drop {name}", deadline_s), deadline_s)
        if doomed:
            self._bring_all(deadline_s)
            known = {one.transaction for one in self.records(deadline_s=deadline_s)}
            for name in doomed:
                if name not in known:
                    self.drop(name, deadline_s=deadline_s)

    def _bring_all(self, deadline_s: float | None) -> None:
        upto = self._last(0, deadline_s)
        for post in range(1, self.servers):
            self._bring(post, self._last(post, deadline_s), upto, deadline_s)

    def _redo(self, post: int, logged: Logged, deadline_s: float | None) -> None:
        commit, number = logged.commit, logged.number
        what = f"commit of {commit.transaction}"

        def make(client: str, sequence: int) -> Commit:
            return replace(commit, client=client, sequence=sequence, number=number, read_version=None, record=b"")

        try:
            self._wait(self._change(post, make, what, deadline_s, as_made=True, stream="/commit"), deadline_s)
        except StoreRefused as no:
            # another survivor may have been faster, with this one and the next ones, or all of them are known to
            # everybody and have been forgotten meanwhile
            forgotten = no.reason == "missing part" and number not in {one.number for one in self.committed()}
            if no.reason != "out of turn" and not forgotten:
                raise
