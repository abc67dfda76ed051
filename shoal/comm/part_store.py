"""Where the members of one group of a view find each other, apart from those of its other groups."""

from __future__ import annotations

from torch._C._distributed_c10d import PrefixStore, Store


class PartStore(PrefixStore):
    """The keys of `store` that begin with `prefix`."""

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__(prefix, store)
        self._store = store  # torch holds only its own half of an object of ours: without this one, it cannot be called
