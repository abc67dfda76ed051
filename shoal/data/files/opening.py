"""A place becomes a source: a prepared data set, or raw files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.core.errors import ConfigError, nearest
from shoal.data.files.rows import Wanted
from shoal.data.files.source import open_files
from shoal.data.formats import Found, find
from shoal.data.formats.images import Images
from shoal.data.formats.listing import is_pattern
from shoal.data.manifest import NAME as MANIFEST
from shoal.data.places import Place
from shoal.data.slices import ALL
from shoal.data.source import Source

_USUAL = ("train", "test", "val", "valid", "validation", "dev", "eval")
_FIRST_WORD = re.compile(r"[A-Za-z]+")


def open_place(
    place: Place,
    split: str,
    columns: Sequence[str | Sequence[str]] | None,
    decode: Mapping[str, Callable[[Any], Any]] | None,
    format: str | None,  # noqa: A002
    memory_bytes: int,
) -> Source:
    """The samples of `split` (``all``: of everything; empty: of everything, which must have no splits) of what lies at
    `place`."""
    prepared = prepared_at(place, split)
    if prepared is not None:
        from shoal.data.shards.source import ShardSource

        source: Source = ShardSource(prepared, split or "given", columns=columns, decode=decode)
        return source
    everything = find(place, format)
    found = _of_split(place, everything, split)
    chosen = found[0][1]
    # a split that lacks a class must give the others the same labels: so images look at all splits
    entries = [entry for entry, _ in (everything if isinstance(chosen, Images) else found)]
    schema = chosen.common_schema(entries)
    return open_files(found, Wanted.of(schema, columns, decode, str(place)), memory_bytes)


def open_listed(
    places: Sequence[Place],
    columns: Sequence[str | Sequence[str]] | None,
    decode: Mapping[str, Callable[[Any], Any]] | None,
    format: str | None,  # noqa: A002
    memory_bytes: int,
) -> Source:
    """The samples of these files, one after the other; they must have the same columns."""
    found = [one for place in places for one in find(place, format)]
    chosen = found[0][1]
    if isinstance(chosen, Images):
        raise ConfigError(
            f"{places[0]} is an image: the class of an image that arrives alone is not known. Put several with their "
            "classes into a Parquet or WebDataset file"
        )
    schema = chosen.common_schema([entry for entry, _ in found])
    return open_files(found, Wanted.of(schema, columns, decode, str(places[0])), memory_bytes)


def prepared_at(place: Place, split: str) -> Place | None:
    """The folder of the prepared data set that is meant, if it is one."""
    if is_pattern(place.url) or (not split and "." in place.name and place.protocol in ("http", "https")):
        return None
    folder = place / split if split not in ("", ALL) else place
    if (folder / MANIFEST).exists():
        return folder
    if folder is not place and (place / MANIFEST).exists():
        raise ConfigError(
            f"{place} is a prepared data set without splits: leave {split!r} out, or slice it with '[:10%]'"
        )
    return None


def _of_split(place: Place, found: list[Found], split: str) -> list[Found]:
    """Those files that belong to `split`: in the folder of that name, or with a name that begins with it. Raises
    `ConfigError` where there is none, or where none was asked for and there are several."""
    if split == ALL:
        return found
    by_split: dict[str, list[Found]] = {}
    single = len(found) == 1 and found[0][0].place.url == place.url
    if not single and not is_pattern(place.url):
        for one in found:
            inner = one[0].place.url[len(place.url) :].lstrip("/")
            folder, slash, _ = inner.partition("/")
            name = folder if slash else _stem(inner)
            by_split.setdefault(name, []).append(one)
    if split:
        if split not in by_split:
            known = sorted(name for name in by_split if name in _USUAL) or sorted(by_split)[:20]
            hint = nearest(split, known) if known else "it has none"
            raise ConfigError(f"{place} has no split {split!r}: {hint}. 'all' is everything, '[:10%]' a part of that")
        return by_split[split]
    usual = sorted(name for name in by_split if name in _USUAL)
    if len(usual) > 1:
        raise ConfigError(
            f"{place} has the splits {', '.join(usual)}: say which, e.g. shoal.data.open(…, {usual[-1]!r}), or "
            f"{'+'.join(usual)} for all"
        )
    return found


def _stem(name: str) -> str:
    """``train-00001-of-00003.parquet`` is of the split ``train``."""
    stem = name.partition(".")[0]
    word = _FIRST_WORD.match(stem)
    return word[0] if word and word[0] in _USUAL else stem
