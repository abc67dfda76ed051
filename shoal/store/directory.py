"""Which keys a store has: an ordered list of declarations, kept by the first server.

Placement is a pure function of the keys in the order in which they were declared. So all clients that read the same
list know where everything lies, and nobody else has to be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import ConfigError
from shoal.store.keys import DenseKey, Key, Slice, SparseKey
from shoal.store.operations import Holding
from shoal.store.placement import Placement, place


@dataclass(frozen=True)
class Declaration:
    """A key of the store, what updates it, and which of the given learning rates is its own."""

    key: Key
    updater: str = "assign"
    options: Mapping[str, Any] = field(default_factory=dict)
    group: int = 0

    def holding(self, part: Slice) -> Holding:
        """What a server is told that shall hold a part of it."""
        return Holding(part, self.updater, dict(self.options), self.group)

    def to_plain(self) -> dict[str, Any]:
        key = self.key
        common = {"name": key.name, "dtype": key.dtype, "whole": key.whole, "updater": self.updater}
        shape: dict[str, Any] = (
            {"rows": key.rows, "row_shape": list(key.row_shape)}
            if isinstance(key, SparseKey)
            else {"shape": list(key.shape)}
        )
        return {**common, **shape, "options": dict(self.options), "group": self.group}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Declaration:
        """Raises `ConfigError` for what is no declaration."""
        try:
            name, dtype, whole = str(data["name"]), str(data["dtype"]), bool(data["whole"])
            key: Key
            if "rows" in data:
                key = SparseKey(name, int(data["rows"]), tuple(int(size) for size in data["row_shape"]), dtype, whole)
            else:
                key = DenseKey(name, tuple(int(size) for size in data["shape"]), dtype, whole)
            return cls(key, str(data["updater"]), dict(data["options"]), int(data["group"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this is no declaration of a key: {error}") from None


class Directory:
    """The declarations of a store, in the batches in which they came, and the name of its placement."""

    def __init__(self) -> None:
        self.placement = ""
        self.batches: list[list[dict[str, Any]]] = []
        self._by_name: dict[str, dict[str, Any]] = {}

    def register(self, placement: str, batch: Sequence[Mapping[str, Any]]) -> None:
        """Take new declarations in; those that are known are left as they are. Raises `ConfigError`, and takes nothing,
        if one contradicts what is known."""
        if self.batches and placement != self.placement:
            raise ConfigError(
                f"the keys of this store are placed by {self.placement!r}, not by {placement!r}: all clients must ask "
                "for the same placement"
            )
        plain = [Declaration.from_plain(one).to_plain() for one in batch]
        new: dict[str, dict[str, Any]] = {}
        for one in plain:
            known = self._by_name.get(one["name"]) or new.get(one["name"])
            if known is not None and known != one:
                raise ConfigError(f"the key {one['name']!r} is declared as {_text(known)}, not as {_text(one)}")
            if known is None:
                new[one["name"]] = one
        if new:
            self.placement = placement
            self.batches.append(list(new.values()))
            self._by_name.update(new)

    def dump(self) -> dict[str, Any]:
        return {"placement": self.placement, "batches": self.batches}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Directory:
        directory = cls()
        for batch in data["batches"]:
            directory.register(data["placement"], batch)
        return directory


class Atlas:
    """What a client has read of the directory: the keys, and where their slices lie."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._batches = 0
        self.declarations: dict[str, Declaration] = {}
        self.placement: Placement | None = None

    def learn(self, data: Mapping[str, Any]) -> list[Declaration]:
        """Take in a directory; returns the declarations that are new."""
        learned: list[Declaration] = []
        for batch in data["batches"][self._batches :]:
            new = [Declaration.from_plain(one) for one in batch]
            self.declarations.update({one.key.name: one for one in new})
            keys = [one.key for one in self.declarations.values()]
            self.placement = place(keys, self._servers, self.placement, data["placement"])
            learned += new
        self._batches = len(data["batches"])
        return learned

    def of(self, key: str) -> tuple[tuple[int, Slice], ...]:
        """(server, slice) of a key that is known, in order of their starts."""
        assert self.placement is not None, "no key is known yet"
        return self.placement.of(key)


def _text(declaration: Mapping[str, Any]) -> str:
    shape = declaration.get("shape") or [declaration.get("rows"), *declaration.get("row_shape", [])]
    kind = "a table" if "rows" in declaration else "an array"
    options = f" with {declaration['options']}" if declaration["options"] else ""
    return f"{kind} of {declaration['dtype']} {shape}, updater {declaration['updater']!r}{options}"
