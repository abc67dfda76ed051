"""What can go wrong between a client and the servers of a store."""

from __future__ import annotations

from shoal.core.errors import CollectiveTimeout, ShoalError


class ServerTimeout(CollectiveTimeout):
    """A server did not answer in time. A change that was under way may have been made or not."""

    def __init__(self, operation: str, server: str, elapsed_s: float, why: str = "") -> None:
        self.operation, self.missing, self.elapsed_s, self.server = operation, (), elapsed_s, server
        ShoalError.__init__(
            self, f"waited {elapsed_s:.1f} s in {operation} for {server}, in vain{': ' if why else ''}{why}"
        )


class WorkersBehind(CollectiveTimeout):
    """Other workers did not get on in time: the consistency forbids to go on without them."""

    def __init__(self, operation: str, workers: tuple[str, ...], elapsed_s: float) -> None:
        numbers = tuple(int(name) for name in workers if name.isdigit())
        self.operation, self.missing, self.elapsed_s, self.workers = operation, numbers, elapsed_s, workers
        names = ", ".join(f"worker {name}" for name in workers) or "nobody that can be named"
        ShoalError.__init__(self, f"waited {elapsed_s:.1f} s in {operation} for {names}, in vain")


class StateLost(ShoalError):  # noqa: N818 - it names the event
    """The servers have gone back to their last snapshot: what was pushed since is lost, whether it was acknowledged or
    not. Raised once to every client, by whatever it has under way or else by what it asks for next; everything works
    again afterwards. Who works in an era that is lost is told by every key it asks for, until it is in another. With
    two replicas no single failure leads here."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        super().__init__(
            "the servers of the store have gone back to their last snapshot: updates since then are lost. Read what "
            "you need anew and go on from there; with `--replicas 2` the loss of one server loses nothing"
        )


class StateReplaced(StateLost):
    """The state that this was meant for is not there any more: the servers have begun anew, or somebody who did not
    know of this client has written another."""

    def __init__(self, operation: str, server: int, detail: str) -> None:
        self.generation = 0
        ShoalError.__init__(self, f"server {server} refused {operation}: {detail}")


class StoreRefused(ShoalError):  # noqa: N818
    """A server did not do what was asked, and changed nothing. `reason` is one word of `shoal.store.answers.Reason`."""

    def __init__(self, operation: str, server: int, reason: str, detail: str) -> None:
        self.operation, self.server, self.reason, self.detail = operation, server, reason, detail
        super().__init__(f"server {server} refused {operation}: {detail} ({reason})")
