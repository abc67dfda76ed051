"""A shard's operations on its board."""

from __future__ import annotations

from shoal.core.consistency import parse
from shoal.core.errors import ConfigError
from shoal.store import board as boards
from shoal.store import operations as ops
from shoal.store.answers import Answer, Done, Leased, NothingLeft, Progress, Wait
from shoal.store.holdings import Holdings, Ways
from shoal.store.refusal import Refusal


def heed(said: boards.Refused | None) -> None:
    """Raise `Refusal` if the board has refused."""
    if said is not None:
        raise Refusal("board", said.why)


class Dealing:
    """Answers for `board` with the version of `holdings`."""

    def __init__(self, holdings: Holdings, board: boards.Board) -> None:
        self._holdings = holdings
        self._board = board

    def ways(self) -> Ways:
        return {
            ops.Open: self.open,
            ops.Close: self.close,
            ops.Lease: self.lease,
            ops.Join: self.join,
            ops.Release: self.release,
            ops.GetProgress: self.progress,
        }

    def open(self, operation: ops.Open) -> Answer:
        try:
            consistency = parse(operation.consistency)
        except ConfigError as error:
            raise Refusal("mismatch", str(error)) from None
        if operation.count < 0:
            raise Refusal("mismatch", f"stretch {operation.stretch} has {operation.count} tasks: give 0 or more")
        heed(self._board.open(operation.stretch, operation.count, consistency, operation.workers, operation.instead))
        return self._done()

    def close(self, operation: ops.Close) -> Answer:
        heed(self._board.close(operation.stretch))
        return self._done()

    def lease(self, operation: ops.Lease) -> Answer:
        version, stretch = self._holdings.version, self._board.stretch
        match self._board.lease(operation.worker):
            case boards.Leased(task):
                return Leased(version, stretch or 0, task, self._board.lead(operation.worker))
            case boards.Wait(cause, workers):
                return Wait(version, cause, workers)
            case boards.NothingLeft():
                return NothingLeft(version, stretch or 0)
            case boards.Refused(why):
                raise Refusal("board", why)

    def join(self, operation: ops.Join) -> Answer:
        self._board.join(operation.worker)
        return self._done()

    def release(self, operation: ops.Release) -> Answer:
        self._board.release(operation.worker)
        return self._done()

    def progress(self, operation: ops.GetProgress) -> Answer:
        board = self._board
        return Progress(
            self._holdings.version,
            board.stretch,
            board.count,
            tuple(sorted(board.committed)),
            dict(sorted(board.leases.items())),
            dict(sorted(board.clocks.items())),
            dict(sorted(board.staleness.items())),
            dict(sorted(board.leads.items())),
        )

    def _done(self) -> Done:
        return Done(self._holdings.version)
