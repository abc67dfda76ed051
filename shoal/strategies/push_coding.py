"""What a worker pushes to servers, coded by slices, with what its codec has left out so far.

A key may be cut over several servers at any element. Each slice is coded for itself: flat, or, by a codec that looks at
shapes, as those rows of the matrix that it touches, filled up with zeros where the first or the last row is another
server's. What is left out is added to the worker's next push of that key.

Law 2 holds for it too: what a push has left out is kept if its transaction was committed. A worker that loses sight of
a transaction (its view was broken) does not know that: it asks the servers (`settle`) before it gives anything up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

import torch
from torch import Tensor

from shoal.comm.codecs.choose import CodecChoice
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.names import AUTO, codec_named
from shoal.comm.group import Group
from shoal.core.state import Piece
from shoal.store.checking import Cut, Given
from shoal.store.keys import Slice
from shoal.store.kvstore import KVStore
from shoal.store.operations import Coding, Update
from shoal.strategies.buckets import RESIDUAL
from shoal.strategies.coding import check_usable
from shoal.strategies.push_choice import PushChoice

Parameters = Mapping[str, tuple[str, Tensor]]  # by key: a parameter's name, and itself

_NONE = "none"
_CODED_TYPES = (torch.float32, torch.float64)


class PushCoding:
    """`choice` is what was chosen with ``auto``, None before that. Each worker chooses for itself: an update says by
    which codec it was made. For one thread."""

    def __init__(self, kv: KVStore, spec: str, device: str) -> None:
        check_usable(spec, device)
        self._kv, self.spec = kv, spec
        self._choosing = PushChoice(kv) if spec == AUTO else None
        self._feedback = ErrorFeedback(codec_named(spec)) if spec not in (AUTO, _NONE) else None
        self._parts: dict[str, tuple[Slice, ...]] = {}
        self._loaded: dict[str, Tensor] = {}  # residuals by key, until there is a codec for them
        self._pending: str | None = None  # the transaction of which it is not known whether it was committed

    @property
    def choice(self) -> CodecChoice | None:
        return self._choosing.choice if self._choosing is not None else None

    # ---- transactions

    def begin(self, transaction: str) -> None:
        """What is encoded from now on belongs to `transaction`. What was encoded before, and not committed, is given
        up. With ``auto`` the codec is chosen here, after some transactions."""
        self.discard()
        if self._choosing is not None and self._choosing.due:
            self._use(self._choosing.decide(transaction).name)
        self._pending = transaction

    def _use(self, name: str) -> None:
        if name != _NONE:
            self._feedback = ErrorFeedback(codec_named(name))
            self.load(self._loaded)

    def commit(self, wait_s: float | None = None) -> None:
        """The transaction is committed; the worker has waited so long for its parts to be staged."""
        if self._pending is None:
            return
        self._pending = None
        if self._feedback is not None:
            self._feedback.commit()
        if self._choosing is not None:
            self._choosing.note(wait_s)

    def discard(self) -> None:
        """The transaction will not be committed."""
        self._pending = None
        if self._feedback is not None:
            self._feedback.discard()

    def settle(self, committed: Collection[str], workers: int) -> None:
        """A new view begins, of so many workers: of the transactions under way before it, `committed` are all that were
        or ever will be committed."""
        if self._pending in committed:
            self.commit()
        else:
            self.discard()
        if self._choosing is not None:
            self._choosing.meet(workers)

    # ---- coding

    def encode(self, name: str, gradient: Tensor, dtype: torch.dtype, size: float = 1.0) -> Given:
        """What is pushed to the key `name`, of this dtype; once in a transaction. `size`: see `ErrorFeedback`."""
        gradient = gradient.detach().contiguous()
        if self._choosing is not None and dtype in _CODED_TYPES:
            self._choosing.see(name, gradient)
        if self._feedback is None or dtype not in _CODED_TYPES or not gradient.numel():
            return gradient.numpy()
        flat = gradient.reshape(-1).to(dtype)
        codec, updates = self._feedback.codec, []
        for part in self._slices(name):
            shape, start = frame(part, codec.by_parameter)
            stop = start + part.units
            payload = self._feedback.encode(part.label, framed(flat[part.start : part.stop], shape, start), size)
            coding = Coding(codec.name, shape, str(dtype).removeprefix("torch."), start, stop)
            updates.append(Update(part.label, payload.numpy(), coding=coding))
        return Cut(tuple(updates))

    # ---- what is left out: in a state, by the names of parameters

    def pieces(self, parameters: Parameters, group: Group) -> dict[str, Piece]:
        """What the codecs of all members have left out so far. Collective; asks no server."""
        if self.spec == _NONE:
            return {}
        found: dict[str, Piece] = {}
        state = self._feedback.state() if self._feedback is not None else {}
        for key, (name, parameter) in parameters.items():
            if parameter.dtype in _CODED_TYPES:
                whole = torch.zeros(parameter.shape, dtype=parameter.dtype)
                whole += self._residual(key, state)
                group.all_reduce(whole, "adding up what codecs have left out")
                found[f"{RESIDUAL}{name}"] = Piece.whole(whole)
        return found

    def load_pieces(self, parameters: Parameters, pieces: Mapping[str, Piece]) -> None:
        """Go on with those residuals that are among `pieces`, and with no others. Not collective: of all that push,
        one loads them."""
        given = {key: pieces.get(f"{RESIDUAL}{name}") for key, (name, _) in parameters.items()}
        self.load({key: piece.tensor for key, piece in given.items() if piece is not None})

    def residual(self, key: str) -> Tensor:
        """What this worker has still to send of a key, for a push of size 1."""
        return self._residual(key, self._feedback.state() if self._feedback is not None else {})

    def _residual(self, key: str, state: Mapping[str, Tensor]) -> Tensor:
        if key in self._loaded:
            return self._loaded[key]
        if key not in self._parts:
            return torch.zeros(())
        parts = self._parts[key]
        whole = torch.zeros(parts[0].key.shape, dtype=getattr(torch, parts[0].key.dtype))
        flat = whole.view(-1)
        for part in parts:
            if (residual := state.get(part.label)) is not None:
                start = frame(part, self._by_parameter)[1]
                flat[part.start : part.stop] = residual.reshape(-1)[start : start + part.units]
        return whole

    def load(self, residuals: Mapping[str, Tensor]) -> None:
        """Go on from these, by key; others have none. What is under way is given up."""
        self.discard()
        self._parts.clear()
        self._loaded = {}
        if self._feedback is None:
            self._loaded = dict(residuals) if self.spec != _NONE else {}
            return
        state: dict[str, Tensor] = {}
        for key, residual in residuals.items():
            flat = residual.reshape(-1)
            for part in self._slices(key):
                shape, start = frame(part, self._by_parameter)
                state[part.label] = framed(flat[part.start : part.stop], shape, start)
        self._feedback.load(state)

    def _slices(self, key: str) -> tuple[Slice, ...]:
        """How a key is cut; it stays so until all of it is loaded anew."""
        if key not in self._parts:
            self._parts[key] = self._kv.slices(key)
        return self._parts[key]

    @property
    def _by_parameter(self) -> bool:
        return self._feedback is not None and self._feedback.codec.by_parameter


def frame(part: Slice, by_parameter: bool) -> tuple[tuple[int, ...], int]:
    """The shape in which a codec is given a slice, and where in it, flattened, the slice begins. Pure."""
    shape = part.key.shape
    if not by_parameter or len(shape) < 2:
        return (part.units,), 0
    columns = prod(shape[1:])
    first, last = part.start // columns, -(-part.stop // columns)
    return (last - first, columns), part.start - first * columns


def framed(flat: Tensor, shape: tuple[int, ...], start: int) -> Tensor:
    """A slice in that shape, with zeros around it."""
    if prod(shape) == len(flat):
        return flat.view(shape)
    whole = flat.new_zeros(shape)
    whole.view(-1)[start : start + len(flat)] = flat
    return whole
