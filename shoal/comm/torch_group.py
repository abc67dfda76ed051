"""A group over one of torch's own process groups: gloo for processors, NCCL for CUDA devices.

The process group is this object's alone: torch's global default group is neither used nor set, so several
groups may follow each other in a process. Waits are cut into short ones, because a thread inside gloo sees
neither the abort word nor our deadline.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from shoal.comm.control import ControlPage
from shoal.comm.group import BucketReducer, BucketSpec, Group
from shoal.comm.patience import Patience
from shoal.core.errors import CollectiveTimeout, PeerLost, ShoalError
from shoal.core.world import World

_GLANCE = timedelta(seconds=0.1)  # how long gloo may wait before we look at the abort word again
_GLOO_MARGIN_S = 30.0  # our own deadline comes first: it can name who is missing
_LOST = ("connection", "socket", "broken pipe", "peer", "remote", "nccl communicator was aborted")


class TorchGroup(Group):
    """Member `world.rank` of the group that meets in `store`. Waits for the others to come.

    `interface` is the network interface that gloo listens on: loopback for a run on one host.
    """

    def __init__(
        self,
        store: Store,
        world: World,
        control: ControlPage,
        backend: str = "gloo",
        timeout_s: float = 300.0,
        interface: str = "lo",
    ) -> None:
        self.rank, self.size, self.backend = world.rank, world.size, backend
        self._control, self._timeout_s = control, timeout_s
        self._device = torch.device(world.device)
        if world.device == "cuda":  # each rank has its own
            self._device = torch.device("cuda", world.rank % torch.cuda.device_count())
        self._abandoned = self._closed = False
        self._await_members(store)
        self._group = self._connect(store, interface)

    def _await_members(self, store: Store) -> None:
        """Wait until all are at the store, where the missing can be named; connecting is quick afterwards."""
        store.set(f"here/{self.rank}", "1")
        absent = list(range(self.size))

        def all_here() -> bool:
            absent[:] = [r for r in absent if not store.check([f"here/{r}"])]
            return not absent

        patience = Patience(self._control, self.size, self._timeout_s)
        patience.wait(all_here, lambda: absent, f"the making of the {self.backend} group", time.monotonic())

    def _connect(self, store: Store, interface: str) -> Any:  # torch's stubs give a Backend no operations
        limit = timedelta(seconds=self._timeout_s + _GLOO_MARGIN_S)
        try:
            if self.backend == "nccl":
                torch.cuda.set_device(self._device)
                nccl = dist.ProcessGroupNCCL.Options()
                nccl._timeout = limit
                return dist.ProcessGroupNCCL(store, self.rank, self.size, nccl)
            gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stubs
            gloo._devices = [dist.ProcessGroupGloo.create_device(interface=interface)]
            gloo._timeout = limit
            return dist.ProcessGroupGloo(store, self.rank, self.size, gloo)
        except RuntimeError as error:
            raise ShoalError(f"cannot connect the {self.backend} group: {_first_line(error)}") from error

    def all_reduce(self, tensor: Tensor, what: str) -> None:
        flat = self._flat(tensor)
        self.complete(self.start_all_reduce(flat), what, self.arrive(), time.monotonic())
        _put_back(flat, tensor)

    def broadcast(self, tensor: Tensor, source: int, what: str) -> None:
        flat = self._flat(tensor)
        self.complete(self._group.broadcast(flat, source), what, self.arrive(), time.monotonic())
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

    def reducer(self, buckets: Sequence[BucketSpec], facts: int) -> BucketReducer:
        from shoal.comm.torch_reducer import TorchReducer

        return TorchReducer(self, buckets, facts, self._device)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        del self._group

    def _abandon(self) -> None:
        """Never destroy the process group: its destructor would wait for threads that wait for a peer. The
        end of the process does not."""
        if not self._abandoned:
            self._abandoned = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))

    # what the reducer needs: operations that are started and completed separately

    def start_all_reduce(self, flat: Tensor) -> dist.Work:
        work: dist.Work = self._group.allreduce([flat])
        return work

    def start_all_gather(self, rows: list[Tensor], row: Tensor) -> dist.Work:
        work: dist.Work = self._group.allgather([rows], [row])
        return work

    def arrive(self) -> int:
        """Say in the control page that this rank enters its next operation; returns the number of it."""
        if self._closed:
            raise ShoalError("this group is closed")
        return self._control.arrive(self.rank)

    def complete(self, work: dist.Work, what: str, number: int, since: float) -> None:
        """Wait for `work`, part of operation `number`, which began at `since` (monotonic)."""
        while True:
            try:
                work.wait(_GLANCE)
                return
            except RuntimeError as error:
                if work.is_completed():
                    self._outcome(work, what, number, since)
                    return
                elapsed_s = time.monotonic() - since
                if self._control.aborted:
                    self._abandon()
                    raise PeerLost(f"the run was aborted during {what}") from None
                if elapsed_s > self._timeout_s:
                    self._abandon()
                    raise CollectiveTimeout(what, self._missing(number), elapsed_s) from error

    def _outcome(self, work: dist.Work, what: str, number: int, since: float) -> None:
        """Return if the completed `work` succeeded, else raise what its failure means."""
        try:
            work.wait()
        except RuntimeError as error:
            self._abandon()
            message = str(error).lower()
            if "timed out" in message or "timeout" in message:
                raise CollectiveTimeout(what, self._missing(number), time.monotonic() - since) from error
            if any(word in message for word in _LOST):
                raise PeerLost(f"a worker was lost during {what}: {_first_line(error)}") from error
            raise

    def _missing(self, number: int) -> list[int]:
        return [r for r in range(self.size) if self._control.arrived(r) < number]

    def _flat(self, tensor: Tensor) -> Tensor:
        """The tensor's values in a row on the group's device: its own memory where that is possible."""
        return tensor.detach().contiguous().view(-1).to(self._device)


def _put_back(flat: Tensor, tensor: Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
