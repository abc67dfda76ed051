"""A model whose parameters are held by servers: how its tensors are keys of the store, written there and read back.

Every trained parameter is a key of the store, updated by the user's own optimizer on the servers; parameters whose
gradients are sparse are tables, of which only touched rows travel. The running statistics are one more key: what passes
have done to them is added up there, in the same transactions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError
from shoal.store.checking import Given
from shoal.store.directory import Declaration
from shoal.store.keys import DenseKey, SparseKey
from shoal.store.kvstore import KVStore
from shoal.store.operations import UNSHAPED, Era
from shoal.strategies.base import Runtime
from shoal.strategies.described import describe_optimizer, moves_at_rest
from shoal.strategies.program import Program
from shoal.strategies.replica import ModelReplica
from shoal.strategies.server_state import pack_entries, unpack_entries

_BUFFERS = "running statistics"
_DIFFERENCES = 0  # the group of weights that are moved by differences: without a rate, but within limits
# A server that shows no sign of life is put out after `elastic.hang_s`, and another started. No worker gives up before:
# there is one who decides, and a wait for a server ends with what was decided.
_AGAIN_S = 120.0  # to have it noticed, and to start another, from a cold disk if need be


class ServedModel(ModelReplica):
    """The module of one worker, a copy of what the servers hold. `local`: the optimizer runs here, and the servers only
    add differences up."""

    def __init__(self, program: Program, runtime: Runtime, local: bool) -> None:
        super().__init__(program, runtime)
        if runtime.fleet is None:
            raise ConfigError("this strategy needs servers, which `shoal train` or fit(workers=N) starts")
        self.local = local
        self.kv = KVStore(
            runtime.fleet,
            key=runtime.fleet.keys,
            placement=runtime.server.placement,
            deadline_s=runtime.hang_s + _AGAIN_S,
        )
        # who waits for a server is not late by its own doing
        self.kv.on_wait = partial(runtime.control.wait, runtime.world.seat)
        self.version = 0  # of the first server, when it was last read
        self.run = f"{runtime.fleet.number}.{runtime.fit}"  # others may have had these servers before
        self.era = 0  # of the state there that this worker works with; 0: of none yet
        self._bytes_told = 0
        self._seen: dict[str, int] = {}
        self._keys = {f"{self.run}/{name}": parameter for name, parameter in self.parameters}
        self._table_keys = sorted(key for key, parameter in self._keys.items() if id(parameter) in self._tables)
        self._touched: dict[str, list[np.ndarray[Any, Any]]] = {
            name: [] for name in self._table_keys
        }  # rows that were read
        self._statistics = {f"{self.run}/{_BUFFERS} {number}": one for number, one in enumerate(self.buffers.kinds)}
        self._copies: dict[str, np.ndarray[Any, Any]] = {}

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
                if name in self._table_keys
                else DenseKey(name, shape, dtype, whole)
            )
            if told is None:
                declarations.append(Declaration(key, "add", {}, _DIFFERENCES if self.local else UNSHAPED))
            else:
                declarations.append(Declaration(key, told.updater, told.options, told.group))
        for name, (start, stop, kind) in self._statistics.items():
            declarations.append(Declaration(DenseKey(name, (stop - start,), kind), "add", {}, UNSHAPED))
        self.kv.register(declarations)

    def updated_by_rows(self) -> list[str]:
        """The tables of which only touched rows are updated though the optimizer would move others, too."""
        if self.local or not self._table_keys:
            return []
        described = describe_optimizer(self.optimizer, self.initial_learning_rates)
        tables = [
            (name, described.get(parameter)) for name, parameter in self.parameters if id(parameter) in self._tables
        ]
        return [name for name, told in tables if told is not None and not told.whole and moves_at_rest(told)]

    def enter_era(self, number: int) -> None:
        """From now on this worker works with the state of that era, and with no other."""
        self.era, self.kv.era = number, Era(self.run, number)

    def upload(self) -> None:
        """What this worker's model holds goes to the servers, with what its optimizer remembers."""
        values: dict[str, Given] = {name: _array(parameter) for name, parameter in self._keys.items()}
        statistics = self.buffers.read().numpy()
        for name, (start, stop, kind) in self._statistics.items():
            values[name] = statistics[start:stop].astype(kind)
        self.kv.wait(self.kv.set_many(values))
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
        versions = self.kv.wait(self.kv.refresh(out, self._seen, touched=self._touched))
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
        """A name that no other has; the numbers of view and era come first, by which it is known whose it was."""
        return f"{self.runtime.view.number}/{self.era}/{self.run}/{name}"

    def read_moments(self) -> None:
        """The optimizer remembers what those of the servers do."""
        if self.local:
            return
        for name, parameter in self._keys.items():
            entries = unpack_entries(self.kv.updater_state(name))
            if entries:
                self.optimizer.state[parameter] = entries

    def take_bytes_sent(self) -> int:
        """What this worker has sent to servers since the last call."""
        before, self._bytes_told = self._bytes_told, self.kv.bytes_sent
        return self._bytes_told - before


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().cpu().contiguous().numpy()
