"""Setting, getting, pushing and pulling: arrays cut over servers, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.store.answers import Found, Pulled
from shoal.store.asking import Array, Asking, maker
from shoal.store.checking import Cut, Given, Rows, check_cut, check_numbers, check_out, check_rows, check_whole
from shoal.store.futures import chain, gather
from shoal.store.keys import Slice
from shoal.store.operations import Change, Pull, Push, PushPull, Set, Update, Wanted
from shoal.store.state import MOST_NAMES

Fill = Callable[[list[Any]], None]  # puts what the servers have answered where it belongs


__all__ = ["Given", "Rows", "Values"]


@dataclass
class _Want:
    """What is asked of one server, and where its arrays shall go."""

    wanted: list[Wanted]
    into: list[Array | None]
    fill: list[Callable[[Found], None]]

    def places(self) -> list[Array | None]:
        """For the arrays of the answer, in their order."""
        return [*self.into, None] if len(self.wanted) > MOST_NAMES else self.into


class Values(Asking):
    """The part of `KVStore` that moves arrays."""

    # ---- cutting what is given

    def cut(self, given: Mapping[str, Given], deadline_s: float | None = None) -> dict[int, tuple[Update, ...]]:
        """By server, the updates for these keys. The arrays are not copied."""
        updates: dict[int, list[Update]] = {}
        for key, one in given.items():
            declaration, parts = self._find(key, deadline_s)
            if isinstance(one, Rows):
                rows, values = check_rows(declaration, one)
                for post, part in parts:
                    inside = np.flatnonzero((rows >= part.start) & (rows < part.stop))
                    if len(inside) or one.everywhere:
                        whole = len(inside) == len(rows)
                        mine = (rows, values) if whole else (rows[inside], values[inside])
                        updates.setdefault(post, []).append(Update(part.label, mine[1], mine[0]))
            elif isinstance(one, Cut):
                ready = check_cut(declaration, one, [part.label for _, part in parts])
                for (post, _), update in zip(parts, ready, strict=True):
                    updates.setdefault(post, []).append(update)
            else:
                flat = check_whole(declaration, one)
                for post, part in parts:
                    updates.setdefault(post, []).append(Update(part.label, flat[part.start : part.stop]))
        return {post: tuple(ones) for post, ones in updates.items()}

    # ---- putting together what is read

    def _wants(
        self, keys: Sequence[str], rows: npt.ArrayLike | None, out: Mapping[str, Array] | None, deadline_s: float | None
    ) -> tuple[dict[str, Array], dict[int, _Want]]:
        results: dict[str, Array] = {}
        wants: dict[int, _Want] = {}
        for key in keys:
            declaration, parts = self._find(key, deadline_s)
            chosen = None if rows is None else check_numbers(declaration, rows)
            shape = declaration.key.shape if chosen is None else (len(chosen), *declaration.key.unit_shape)
            result = check_out(declaration, shape, out.get(key) if out is not None else None)
            results[key] = result
            for post, part in parts:
                want = wants.setdefault(post, _Want([], [], []))
                if chosen is None:
                    units = result.reshape(-1, *declaration.key.unit_shape)[part.start : part.stop]
                    want.wanted.append(Wanted(part.label))
                    want.into.append(units)
                    want.fill.append(partial(_fill, units))
                else:
                    inside = np.flatnonzero((chosen >= part.start) & (chosen < part.stop))
                    if len(inside):
                        want.wanted.append(Wanted(part.label, rows=chosen[inside]))
                        want.into += [None, None]
                        want.fill.append(partial(_fill_rows, result, inside))
        return results, {post: want for post, want in wants.items() if want.wanted}

    # ---- moving

    def set_many(self, given: Mapping[str, Given], deadline_s: float | None = None) -> Future[None]:
        """Overwrite the values of several keys."""
        return self._send(Set, given, "set", deadline_s)

    def push_many(self, given: Mapping[str, Given], deadline_s: float | None = None, **fields: Any) -> Future[None]:
        """Have the updaters of several keys apply these arrays, which must not change before it is done."""
        return self._send(Push, given, "push", deadline_s, **fields)

    def _send(
        self,
        kind: Callable[..., Change],
        given: Mapping[str, Given],
        what: str,
        deadline_s: float | None,
        **fields: Any,
    ) -> Future[None]:
        what = f"{what} of {_names(given)}"
        futures = [
            self._change(post, maker(kind, updates=updates, **fields), what, deadline_s)
            for post, updates in self.cut(given, deadline_s).items()
        ]
        return self._note(gather(futures, lambda answers: None))

    def pull_many(
        self,
        keys: Sequence[str],
        *,
        rows: npt.ArrayLike | None = None,
        worker: int | None = None,
        out: Mapping[str, Array] | None = None,
        deadline_s: float | None = None,
        wait: bool = True,
    ) -> Future[dict[str, Array]]:
        """Read several keys; with `rows`, these rows of each; with `out`, into these arrays. Waits until the
        consistency allows this worker to read, unless `wait` is False."""
        what = f"pull of {_names(keys)}"
        results, wants = self._wants(keys, rows, out, deadline_s)

        def ask(_: object) -> Future[dict[str, Array]]:
            futures = [
                self._read(post, Pull(tuple(want.wanted)), what, deadline_s, worker, into=want.places())
                for post, want in wants.items()
            ]
            return gather(futures, lambda answers: _filled(results, wants.values(), answers))

        return chain(self._may_read(what, deadline_s), ask) if wait else ask(None)

    def refresh(
        self,
        out: Mapping[str, Array],
        seen: dict[str, int],
        deadline_s: float | None = None,
        touched: Mapping[str, list[Array]] | None = None,
    ) -> Future[dict[int, int]]:
        """Bring copies of keys up to date: of tables only the rows that have changed are read. `seen` says by slice
        which version the copies are of, and is brought up to date too; to `touched` are added, for those keys that it
        has, the units that were read. Returns the versions of the servers that were asked, by number: the first, which
        says how old the copies are, and those that hold something of it."""
        posts: dict[int, list[tuple[Slice, Array]]] = {0: []}
        for key, array in out.items():
            declaration, parts = self._find(key, deadline_s)
            units = array.reshape(-1, *declaration.key.unit_shape)
            for post, part in parts:
                posts.setdefault(post, []).append((part, units[part.start : part.stop]))

        def take(post: int, answer: Pulled) -> None:
            for (part, units), found in zip(posts[post], answer.found, strict=True):
                seen[part.label] = found.version
                if found.values is not None and touched is not None and part.key.name in touched:
                    units_read = np.arange(part.start, part.stop) if found.rows is None else found.rows
                    touched[part.key.name].append(units_read)
                if found.values is not None and found.rows is not None:
                    units[found.rows - part.start] = found.values
                elif found.values is not None:
                    _put(units, found.values)

        def finish(answers: list[Pulled]) -> dict[int, int]:
            for post, answer in zip(posts, answers, strict=True):
                take(post, answer)
            return {post: answer.version for post, answer in zip(posts, answers, strict=True)}

        futures = []
        for post, wanted in posts.items():
            asked = tuple(Wanted(part.label, since=seen.get(part.label)) for part, _ in wanted)
            futures.append(self._read(post, Pull(asked), f"refresh of {_names(out)}", deadline_s))
        return gather(futures, finish)

    def push_pull_many(
        self,
        given: Mapping[str, Given],
        keys: Sequence[str] = (),
        *,
        rows: npt.ArrayLike | None = None,
        out: Mapping[str, Array] | None = None,
        deadline_s: float | None = None,
        **fields: Any,
    ) -> Future[dict[str, Array]]:
        """Push, and read the outcome in the same round trip: of the keys pushed to, or of `keys`."""
        what = f"push and pull of {_names(given)}"
        updates = self.cut(given, deadline_s)
        results, wants = self._wants(tuple(keys) or tuple(given), rows, out, deadline_s)
        futures = []
        for post in sorted({*updates, *wants}):
            want = wants.setdefault(post, _Want([], [], []))
            make = maker(PushPull, updates=updates.get(post, ()), wanted=tuple(want.wanted), **fields)
            futures.append(self._change(post, make, what, deadline_s, into=want.places()))
        ordered = [wants[post] for post in sorted({*updates, *wants})]
        return self._note(gather(futures, lambda answers: _filled(results, ordered, answers)))

    # ---- what the consistency has to say: see `shoal.store.kvstore`

    def _may_read(self, what: str, deadline_s: float | None) -> Future[Any]:
        raise NotImplementedError

    def _note(self, future: Future[Any]) -> Future[Any]:
        """A change is under way."""
        raise NotImplementedError


def _filled(results: dict[str, Array], wants: Any, answers: list[Pulled]) -> dict[str, Array]:
    for want, answer in zip(wants, answers, strict=True):
        for fill, found in zip(want.fill, answer.found, strict=True):
            fill(found)
    return results


def _fill(units: Array, found: Found) -> None:
    assert found.values is not None, "all was asked for"
    _put(units, found.values)


def _fill_rows(result: Array, places: Array, found: Found) -> None:
    result[places] = found.values


def _put(units: Array, values: Array) -> None:
    if not np.may_share_memory(units, values):
        units[...] = values.reshape(units.shape)


def _names(keys: Any) -> str:
    names = [repr(key) for key in keys]
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"
