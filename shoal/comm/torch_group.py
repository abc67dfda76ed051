"""A group over one of torch's own process groups: gloo for processors, NCCL for CUDA devices.

The process group is this object's alone: torch's global default group is neither used nor set, so several
groups may follow each other in a process. Waits are cut into short ones, because a thread inside gloo sees
neither that the view is broken nor our deadline. A group that failed is taken down whole: its sockets are shut, so that
all its operations end and its threads with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from shoal.comm.arrivals import Arrivals
from shoal.comm.control import ControlPage
from shoal.comm.gloo import Connected, connect_gloo
from shoal.comm.group import BucketReducer, BucketSpec, Group
from shoal.comm.peer_sockets import PeerSockets, socket_inodes
from shoal.comm.unheard import Unheard
from shoal.core.errors import CollectiveTimeout, PeerLost, ShoalError
from shoal.core.teams import Part
from shoal.core.world import Member, View

_GLANCE = timedelta(seconds=0.02)  # how long gloo may wait before we look again whether the view is broken
_GLOO_MARGIN_S = 5.0  # our own deadline comes first: it can name who is missing
# operations whose sockets are shut down end at once, except those whose message had been received or sent in part:
# gloo forgets to tell them, and they end by their own timeout
_ENDING_S = 0.05
_ENDING_POLL_S, _OUTLAST_POLL_S = 0.001, 0.5
_LOST = ("connection", "socket", "broken pipe", "peer", "remote", "nccl communicator was aborted")


class TorchGroup(Group):
    """The group of `view`, or of a part of it, which meets in `store`, in the process that is `member`. The constructor
    waits until all are connected; see `connect_gloo`."""

    def __init__(
        self,
        view: View,
        member: Member,
        control: ControlPage,
        store: Store,
        backend: str = "gloo",
        timeout_s: float = 300.0,
        device: str = "cpu",
        part: Part | None = None,
    ) -> None:
        part = part or Part.whole(view)
        self.rank, self.size, self.backend = part.members.index(member), part.size, backend
        self._control, self._timeout_s = control, timeout_s
        self._number, self._seat = view.number, member.seat
        self._device = torch.device(device)
        self._arrivals = Arrivals(view, part, member, control)
        self._unheard = Unheard(view, part, member, control)
        self._works: list[dist.Work] = []  # started and not completed
        self._failed = self._closed = False
        limit = timedelta(seconds=timeout_s + _GLOO_MARGIN_S)
        if backend == "nccl":
            self._connected = Connected(self._make_nccl(store, limit), frozenset(), PeerSockets(socket_inodes()))
        else:
            self._connected = connect_gloo(view, part, member, control, store, timeout_s)
            self._connected.group._set_default_timeout(limit)
        self._group = self._connected.group
        try:
            self._introduce()
        except BaseException:
            self.close()
            raise

    def _make_nccl(self, store: Store, limit: timedelta) -> Any:
        try:
            torch.cuda.set_device(self._device)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._store = store  # asked later, too, and torch holds only its own half of one of ours
            return dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        except RuntimeError as error:
            raise ShoalError(f"cannot connect the nccl group: {_first_line(error)}") from error

    def _introduce(self) -> None:
        """Tell each other which ports are gloo's."""
        row = torch.tensor([next(iter(self._connected.ports), 0)], dtype=torch.int64, device=self._device)
        rows = [torch.empty_like(row) for _ in range(self.size)]
        what, since = "the making of the group", time.monotonic()
        self.complete(self.start_all_gather(rows, row), what, self.arrive(), since)
        self._connected.sockets.keep(self._connected.ports, {int(port) for port in rows})

    def all_reduce(self, tensor: Tensor, what: str) -> None:
        flat = self._flat(tensor)
        self.complete(self.start_all_reduce(flat), what, self.arrive(), time.monotonic())
        _put_back(flat, tensor)

    def broadcast(self, tensor: Tensor, source: int, what: str) -> None:
        flat = self._flat(tensor)
        self.complete(self._started(self._group.broadcast(flat, source)), what, self.arrive(), time.monotonic())
        _put_back(flat, tensor)

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        number, since = self.arrive(), time.monotonic()
        length = torch.tensor([len(payload)], dtype=torch.int64, device=self._device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        self.complete(self.start_all_gather(lengths, length), what, number, since)
        numbers = [int(value) for value in lengths]
        if not any(numbers):
            return [b""] * self.size
        padded = torch.zeros(max(numbers), dtype=torch.uint8)
        if payload:
            padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        padded = padded.to(self._device)
        everyone = [torch.empty_like(padded) for _ in range(self.size)]
        self.complete(self.start_all_gather(everyone, padded), what, number, since)
        return [part.cpu().numpy()[:count].tobytes() for part, count in zip(everyone, numbers, strict=True)]

    def start_gather(self, parts: Sequence[Tensor], own: Tensor, what: str) -> Callable[[], None]:
        if self._device.type != "cpu":
            return super().start_gather(parts, own, what)
        work = self.start_all_gather(list(parts), own)
        return lambda: self.complete(work, what, self.arrive(), time.monotonic())

    def reducer(self, buckets: Sequence[BucketSpec], facts: int) -> BucketReducer:
        from shoal.comm.torch_reducer import TorchReducer

        return TorchReducer(self, buckets, facts, self._device)

    def interrupt(self) -> None:
        self._connected.sockets.shut_down()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._failed or not _idle(self._works):
            self.interrupt()
            until = time.monotonic() + _ENDING_S
            while not _idle(self._works) and time.monotonic() < until:
                time.sleep(_ENDING_POLL_S)
        if not _idle(self._works):
            # the destructor would wait for the threads that are at work, so another thread destroys it
            threading.Thread(
                target=_outlast, args=(self._group, self._works), name="shoal-outlast", daemon=True
            ).start()
        self._connected.sockets.close()
        self._connected.group = None
        del self._group, self._works, self._arrivals

    def __del__(self) -> None:
        # whoever forgets to close a group that failed would wait in the destructor of gloo's
        if hasattr(self, "_group"):
            self.close()

    # what the reducer needs: operations that are started and completed separately

    def start_all_reduce(self, flat: Tensor) -> dist.Work:
        return self._started(self._group.allreduce([flat]))

    def start_all_gather(self, rows: list[Tensor], row: Tensor) -> dist.Work:
        return self._started(self._group.allgather([rows], [row]))

    def _started(self, work: dist.Work) -> dist.Work:
        self._works.append(work)
        return work

    def arrive(self) -> int:
        """Say where others can see it that this member enters its next operation; returns the number of it."""
        if self._closed:
            raise ShoalError("this group is closed")
        self._control.tick(self._seat)
        return self._arrivals.arrive()

    def complete(self, work: dist.Work, what: str, number: int, since: float) -> None:
        """Wait for `work`, part of operation `number`, which began at `since` (monotonic)."""
        self._control.wait(self._seat, True)
        try:
            while not self._completes(work, what, number, since):
                if self._control.broken(self._number) and not work.is_completed():
                    raise PeerLost(f"view {self._number} was broken during {what}")
                elapsed_s = time.monotonic() - since
                self._unheard.look(since + elapsed_s)
                if elapsed_s > self._timeout_s:
                    raise self._overdue(what, number, elapsed_s)
            self._works.remove(work)
            self._unheard.heard()
        except BaseException:
            self._failed = True
            self.interrupt()
            raise
        finally:
            self._control.wait(self._seat, False)
            self._control.tick(self._seat)

    def _completes(self, work: dist.Work, what: str, number: int, since: float) -> bool:
        """Wait for a moment; true if `work` is done. Raises what its failure means."""
        try:
            work.wait(_GLANCE)
            return True
        except RuntimeError:
            if not work.is_completed():
                return False
        try:
            work.wait()
            return True
        except RuntimeError as error:
            message = str(error).lower()
            if self._control.broken(self._number) or any(word in message for word in _LOST):
                raise PeerLost(f"a worker was lost during {what}: {_first_line(error)}") from error
            if "timed out" in message or "timeout" in message:
                raise self._overdue(what, number, time.monotonic() - since) from error
            raise

    def _overdue(self, what: str, number: int, elapsed_s: float) -> CollectiveTimeout:
        if self._unheard.rank is not None:
            return CollectiveTimeout(what, [self._unheard.rank], elapsed_s, unheard=True)
        return CollectiveTimeout(what, self._arrivals.missing(number), elapsed_s)

    def _flat(self, tensor: Tensor) -> Tensor:
        """The tensor's values in a row on the group's device: its own memory where that is possible."""
        return tensor.detach().contiguous().view(-1).to(self._device)


def _idle(works: Sequence[dist.Work]) -> bool:
    return all(work.is_completed() for work in works)


def _outlast(group: Any, works: Sequence[dist.Work]) -> None:
    """Hold `group` until its last operation has ended."""
    while not _idle(works):
        time.sleep(_OUTLAST_POLL_S)


def _put_back(flat: Tensor, tensor: Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
