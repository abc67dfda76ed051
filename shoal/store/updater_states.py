"""What updaters keep beside the values, such as momenta: read and replaced as whole arrays, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.store.answers import UpdaterState
from shoal.store.asking import Array, maker
from shoal.store.futures import gather
from shoal.store.keys import Slice
from shoal.store.operations import GetState, SetState
from shoal.store.values import Values


class UpdaterStates(Values):
    """The part of `KVStore` for what updaters keep."""

    def updater_state(self, key: str, deadline_s: float | None = None) -> dict[str, Array]:
        """The arrays that the updater of a key keeps, put together as the key is. A slice that was never updated keeps
        nothing: it has zeros there, as for the rows of a table that were never named. What has not the key's shape,
        such as a count of steps, or has a colon in its name, is taken from the first slice that has it."""
        declaration, parts = self._find(key, deadline_s)
        futures = [self._read(post, GetState(part.label), f"state of {key!r}", deadline_s) for post, part in parts]
        answers: list[UpdaterState] = self._wait(gather(futures, list), deadline_s)
        found: dict[str, Array] = {}
        for name in dict.fromkeys(name for answer in answers for name in answer.state):
            kept = [(one.state[name], part) for one, (_, part) in zip(answers, parts, strict=True) if name in one.state]
            if ":" not in name and all(array.shape == part.shape for array, part in kept):
                found[name] = _joined(name, answers, parts).reshape(declaration.key.shape)
            else:
                found[name] = kept[0][0].copy()
        return found

    def set_updater_state(self, key: str, state: Mapping[str, Array], deadline_s: float | None = None) -> None:
        """Replace what the updater of a key keeps. What lies on one server goes there as it is: an updater that looks
        at whole arrays keeps them in shapes of its own."""
        declaration, parts = self._find(key, deadline_s)
        futures = []
        for post, part in parts:
            mine = {
                name: array.reshape(-1, *declaration.key.unit_shape)[part.start : part.stop]
                if array.shape == declaration.key.shape and len(parts) > 1
                else array
                for name, array in state.items()
            }
            make = maker(SetState, where=part.label, state=mine)
            futures.append(self._change(post, make, f"state of {key!r}", deadline_s))
        self._wait(gather(futures, lambda answers: None), deadline_s)


def _joined(name: str, answers: Sequence[UpdaterState], parts: Sequence[tuple[int, Slice]]) -> Array:
    """What all slices keep under this name, one behind the other."""
    dtype = next(one.state[name].dtype for one in answers if name in one.state)
    return np.concatenate(
        [
            one.state[name] if name in one.state else np.zeros(part.shape, dtype)
            for one, (_, part) in zip(answers, parts, strict=True)
        ]
    )
