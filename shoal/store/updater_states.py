"""What updaters keep beside the values, such as momenta: read and replaced as whole arrays, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.store.answers import UpdaterState
from shoal.store.asking import Array, maker
from shoal.store.futures import gather
from shoal.store.operations import GetState, SetState
from shoal.store.values import Values


class UpdaterStates(Values):
    """The part of `KVStore` for what updaters keep."""

    def updater_state(self, key: str, deadline_s: float | None = None) -> dict[str, Array]:
        """The arrays that the updater of a key keeps, put together as the key is; what has not its shape, such as a
        count of steps, is taken from the first slice."""
        declaration = self._declared(key, deadline_s)
        parts = self._parts(key)
        futures = [self._read(post, GetState(part.label), f"state of {key!r}", deadline_s) for post, part in parts]
        answers: list[UpdaterState] = self._wait(gather(futures, list), deadline_s)
        found: dict[str, Array] = {}
        for name, first in answers[0].state.items():
            if len(parts) == 1 and first.size != parts[0][1].units * int(np.prod(declaration.key.unit_shape)):
                found[name] = first.copy()
            elif first.shape == parts[0][1].shape:
                found[name] = np.concatenate([one.state[name] for one in answers]).reshape(declaration.key.shape)
            else:
                found[name] = first.copy()
        return found

    def set_updater_state(self, key: str, state: Mapping[str, Array], deadline_s: float | None = None) -> None:
        """Replace what the updater of a key keeps."""
        declaration = self._declared(key, deadline_s)
        futures = []
        for post, part in self._parts(key):
            mine = {
                name: array.reshape(-1, *declaration.key.unit_shape)[part.start : part.stop]
                if array.shape == declaration.key.shape
                else array
                for name, array in state.items()
            }
            make = maker(SetState, where=part.label, state=mine)
            futures.append(self._change(post, make, f"state of {key!r}", deadline_s))
        self._wait(gather(futures, lambda answers: None), deadline_s)
