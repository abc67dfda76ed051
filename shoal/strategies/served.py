"""A model whose parameters are held by servers: what a worker computes is staged there, what they hold is read back.

Every trained parameter is a key of the store, updated by the user's own optimizer on the servers; parameters whose
gradients are sparse are tables, of which only touched rows travel. The running statistics are one more key: what passes
have done to them is added up there, in the same transactions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError, ShoalError
from shoal.core.state import ShardedState
from shoal.store.checking import Given, Rows
from shoal.store.directory import Declaration
from shoal.store.errors import StateLost
from shoal.store.keys import DenseKey, SparseKey
from shoal.store.kvstore import KVStore
from shoal.store.operations import UNSHAPED
from shoal.strategies.base import Runtime
from shoal.strategies.described import describe_optimizer
from shoal.strategies.program import Program
from shoal.strategies.replica import ModelReplica
from shoal.strategies.server_state import pack_entries, unpack_entries

_BUFFERS = "running statistics"
_SERVED = "served"  # in the values of a live state: the rest is with the servers


class ServedReplica(ModelReplica):
    """The module of one worker, a copy of what the servers hold. `local`: the optimizer runs here, and the servers only
    add differences up."""

    def __init__(self, program: Program, runtime: Runtime, local: bool = False) -> None:
        super().__init__(program, runtime)
        if runtime.fleet is None:
            raise ConfigError("this strategy needs servers, which `shoal train` or fit(workers=N) starts")
        self.local = local
        self.lost = False  # the servers have gone back to a snapshot, and the group does not know it yet
        self.generation = 0  # counts how often they have
        self.kv = KVStore(runtime.fleet, key=runtime.fleet.keys)
        self._seen: dict[str, int] = {}
        self._bytes_told = 0
        self.version = 0  # of the first server, when it was last read
        self.run = f"{runtime.fleet.number}.{runtime.fit}"  # others may have had these servers before
        self._keys = {f"{self.run}/{name}": parameter for name, parameter in self.parameters}
        self._sums: dict[str, Tensor] = {}
        self._change = torch.zeros(self.buffers.numel, dtype=torch.float64)
        self._tables = {f"{self.run}/{name}" for name in _embeddings(self.module)}
        self._statistics = {f"{self.run}/{_BUFFERS} {number}": one for number, one in enumerate(self.buffers.kinds)}
        self._copies: dict[str, np.ndarray[Any, Any]] = {}
        self._own: dict[str, Tensor] = {}  # weights of this worker's own, where it has any
        try:
            self._declare()
            if not runtime.alike:
                if runtime.world.is_first:
                    self.upload()
                runtime.group.barrier("the first worker's parameters go to the servers")
                self.download()
            self.attach(runtime)
        except BaseException:
            self.kv.close()
            raise

    # ---- keys

    def _declare(self) -> None:
        described = {} if self.local else describe_optimizer(self.optimizer, self.initial_learning_rates)
        declarations = []
        for name, parameter in self._keys.items():
            dtype = str(parameter.dtype).removeprefix("torch.")
            told = described.get(parameter)
            whole = told is not None and told.whole
            shape = tuple(parameter.shape)
            key = (
                SparseKey(name, shape[0], shape[1:], dtype, whole)
                if name in self._tables
                else DenseKey(name, shape, dtype, whole)
            )
            if told is None:
                declarations.append(Declaration(key, "add", {}, UNSHAPED))
            else:
                declarations.append(Declaration(key, told.updater, told.options, told.group))
        for name, (start, stop, kind) in self._statistics.items():
            declarations.append(Declaration(DenseKey(name, (stop - start,), kind), "add", {}, UNSHAPED))
        self.kv.register(declarations)

    def upload(self) -> None:
        """What this worker's model holds goes to the servers, with what its optimizer remembers."""
        values: dict[str, Given] = {name: _array(parameter) for name, parameter in self._keys.items()}
        statistics = self.buffers.read().numpy()
        for name, (start, stop, kind) in self._statistics.items():
            values[name] = statistics[start:stop].astype(kind)
        self.kv.set_many(values).result()
        if not self.local:
            for name, parameter in self._keys.items():
                entries = self.optimizer.state.get(parameter, {})
                self.kv.set_updater_state(name, pack_entries(entries, type(self.optimizer).__name__))

    @torch.no_grad()
    def download(self) -> None:
        """The model becomes what the servers hold. Only what has changed is read, of tables by rows."""
        out = {name: self._place_for(name, parameter) for name, parameter in self._keys.items()}
        for name, (start, stop, kind) in self._statistics.items():
            out[name] = self._copies.setdefault(name, np.zeros(stop - start, kind))
        versions = self.kv.refresh(out, self._seen).result()
        self.version = versions.get(0, self.version)
        for name, parameter in self._keys.items():
            if name in self._copies:
                parameter.copy_(torch.from_numpy(self._copies[name]))
        if self._statistics:
            parts = [self._copies[name].astype(np.float64) for name in self._statistics]
            self.buffers.assign(torch.from_numpy(np.concatenate(parts)))

    def _place_for(self, name: str, parameter: nn.Parameter) -> np.ndarray[Any, Any]:
        """Where a parameter is read to: its own memory where that lies in order and holds nothing else, or a copy."""
        if not self.local and parameter.is_contiguous() and parameter.device.type == "cpu":
            return parameter.detach().numpy()
        return self._copies.setdefault(name, np.empty(tuple(parameter.shape), dtype=_array(parameter).dtype))

    def transaction(self, name: str) -> str:
        """A name that no other has; the number of the view comes first, by which it is known whose it was."""
        return f"{self.runtime.view.number}/{self.run}/{name}"

    # ---- gradients

    def collect(self) -> None:
        if not self.runtime.exact_sums:
            return
        for name, parameter in self._keys.items():
            grad = parameter.grad
            if grad is None:
                continue
            wide = grad.detach().to(torch.float64)
            self._sums[name] = self._sums[name] + wide if name in self._sums else wide
            parameter.grad = None

    def gradients(self) -> dict[str, Given]:
        """What the passes of this step have left, as sums, and the change of the running statistics. Parameters that no
        pass has used are not among them."""
        given: dict[str, Given] = {}
        for name, parameter in self._keys.items():
            grad = self._sums.get(name) if self.runtime.exact_sums else parameter.grad
            if grad is not None:
                given[name] = self._as_given(name, grad.detach())
        return {**given, **self._buffer_change()}

    def _buffer_change(self) -> dict[str, Given]:
        """What the passes of this step have done to the running statistics."""
        self.buffers.changes(self._change)
        change = self._change.numpy()
        return {name: change[start:stop] for name, (start, stop, _) in self._statistics.items()}

    def _as_given(self, name: str, grad: Tensor) -> Given:
        if not grad.is_sparse:
            if name in self._tables:
                return Rows(np.arange(grad.shape[0]), grad.contiguous().numpy())
            return grad.contiguous().numpy()
        if name not in self._tables:
            raise ConfigError(
                f"the gradient of {name} is sparse, and it is not that of an embedding: use sparse=False in the model"
            )
        grad = grad.coalesce()
        return Rows(grad.indices()[0].numpy(), grad.values().contiguous().numpy())

    def forget_gradients(self) -> None:
        self._sums.clear()
        for parameter in self._keys.values():
            parameter.grad = None

    # ---- what is sent

    def take_bytes_sent(self) -> int:
        """What this worker has sent since the last call."""
        before, self._bytes_told = self._bytes_told, self.kv.bytes_sent
        return self._bytes_told - before

    # ---- members that change

    def attach(self, runtime: Runtime) -> None:
        """Take part in a view: what members of earlier ones have left half done is done or dropped. `recalled` are the
        records of commits that the servers remember."""
        self.runtime = runtime
        self.recalled: list[dict[str, Any]] = []
        number, members = runtime.view.number, {member.key for member in runtime.view.members}

        def abandoned(transaction: str) -> bool:
            return int(transaction.partition("/")[0]) < number

        try:
            self.kv.settle(abandoned)
            for worker in self.kv.progress().clocks:
                if worker not in members:
                    self.kv.release(worker)
            # only now nothing of an earlier view can be committed any more
            records = [json.loads(one.commit.record) for one in self.kv.committed() if one.commit.record]
            self.recalled = [record for record in records if record["run"] == self.run]
        except StateLost:
            self.lost = True

    def agree(self, word: Mapping[str, Any], what: str) -> list[dict[str, Any]]:
        """Everyone's word. Raises `StateLost` on all workers where one of them has noticed it. Collective."""
        told = self.runtime.group.gather_bytes(json.dumps({**word, "lost": self.lost}).encode(), what)
        words: list[dict[str, Any]] = [json.loads(one) for one in told]
        if any(one["lost"] for one in words):
            self.lost = False
            self.discard()
            raise StateLost(self.generation)
        return words

    def discard(self) -> None:
        super().discard()
        self._sums.clear()

    # ---- state

    def state(self) -> ShardedState:
        """The whole state, as the servers hold it."""
        self.download()
        if not self.local:
            for name, parameter in self._keys.items():
                entries = unpack_entries(self.kv.updater_state(name))
                if entries:
                    self.optimizer.state[parameter] = entries
        return super().state()

    def live_state(self) -> ShardedState:
        if self.local:
            state = super().live_state()
            return ShardedState(state.pieces, {**state.values, _SERVED: self.generation})
        return ShardedState({}, {_SERVED: self.generation})

    def load(self, state: ShardedState) -> None:
        if _SERVED in state.values:  # it was copied from another worker: the servers have the rest
            if self.local:
                super().load(state)
            self.generation = int(state.values[_SERVED])
            self.download()
            return
        super().load(state)
        group, first = self.runtime.group, self.runtime.world.is_first
        self.generation += 1
        self._seen.clear()
        _once_more(self._declare)
        if first:
            _once_more(self.upload)
        group.barrier("a checkpoint goes to the servers")
        _once_more(self.download)
        self.attach(self.runtime)
        self.lost = False

    def close(self) -> None:
        self.kv.close()


def _once_more(do: Callable[[], None]) -> None:
    """Every client is told once that the servers have gone back, maybe only now: then this is done anew."""
    try:
        do()
    except StateLost:
        do()


def scale_for_norm(squares: float, limit: float | None) -> float:
    """By what a gradient is multiplied to keep within `limit`, as torch's own clipping does it."""
    if limit is None:
        return 1.0
    norm = math.sqrt(squares)
    if not math.isfinite(norm):
        raise ShoalError("the gradient is not finite: clip.norm cannot be applied to it")
    return min(1.0, limit / (norm + 1e-6))


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().cpu().contiguous().numpy()


def _embeddings(module: nn.Module) -> set[str]:
    """The names of weights whose gradients are sparse."""
    found = {
        id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    }
    return {name for name, parameter in module.named_parameters() if id(parameter) in found}
