"""The one door to data: `shoal.data.open`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import ConfigError
from shoal.data.places import Place
from shoal.data.slices import ALL, Slice, parse_split

if TYPE_CHECKING:
    from shoal.data.source import Source

MEMORY_MIB = 512
FOLLOW_S = 60.0
_NAMED = re.compile(r"(?P<name>[\w.-]+)(?::(?P<split>[^/].*))?")


def open(  # noqa: A001, PLR0913 - shoal.data.open reads well, and its words are optional
    what: object,
    split: str | None = None,
    *,
    columns: Sequence[str | Sequence[str]] | None = None,
    decode: Mapping[str, Callable[[Any], Any]] | None = None,
    format: str | None = None,  # noqa: A002 - the word for it
    options: Mapping[str, Any] | None = None,
    memory_mib: int = MEMORY_MIB,
    follow: bool = False,
    follow_s: float = FOLLOW_S,
) -> Source:
    """Return the source that `what` stands for; a Trainer takes it as `train` or `test`.

    `what` is the name of a data set (``"digits"``, ``"cifar10"``, ``"mnist"``, ``"fashion-mnist"``, or a registered
    one); a file, folder or pattern, local or ``hdfs://``, ``s3://``, ``https://``, of Parquet, CSV, JSON lines, NumPy,
    images or WebDataset tar, or a prepared data set; or data in memory as a Trainer takes it.

    `split` chooses samples: ``"train"``, ``"train[:10%]"``, ``"train[100:200]"``, ``"[50%:]"``, ``"train+test"``; after
    a name it may follow a colon, ``"cifar10:train[:10%]"``. In a folder, ``train`` is the folder or the files of that
    name in it.

    Of files, a sample is a tuple of tensors, one for each of `columns` (one alone: just that), all of them unless
    stated; a group of names stands for numbers side by side, as one row. Fractions are float32, whole numbers int64,
    images uint8, channels x height x width; other bytes and text become tensors by the function that `decode` has for
    their column. `format` names the format where endings do not; `options` are fsspec's, such as an endpoint. Raw files
    of up to `memory_mib` are read into memory.

    `follow`: a folder that receives files while training goes on. Every file's samples are used once in the whole run,
    an epoch being what has arrived since the last; it ends with a file ``_END``, or when none has come for `follow_s`
    seconds.

    Raises a `UserError` that says what is missing, unknown, different, or may not be read: all that can be known
    before the first batch.
    """
    if follow:
        if not isinstance(what, str | os.PathLike | Place) or split is not None:
            raise ConfigError("follow=True is for a folder or prefix that receives files, without a split")
        return _followed(Place.of(what, options), columns, decode, format, memory_mib, follow_s)
    if isinstance(what, str | os.PathLike | Place):
        found = _named(what)
        if found is not None:
            name, inner = found
            if inner is not None and split is not None:
                raise ConfigError(f"two splits were given, {inner!r} and {split!r}: give one")
            _refuse_for_names(name, columns=columns, decode=decode, format=format, options=options)
            return _open_named(name, split or inner)
        from shoal.data.files.opening import open_place

        place = Place.of(what, options)
        return _combined(
            lambda part: open_place(place, part, columns, decode, format, memory_mib << 20), split, str(place)
        )
    from shoal.data.source import open_source

    for setting, value in (("columns", columns), ("decode", decode), ("format", format), ("options", options)):
        if value is not None:
            raise ConfigError(f"{setting}= is for files; what was given is a {type(what).__name__}")
    source = open_source(what, "given")
    return _combined(lambda part: source, split, f"a {type(what).__name__}", has_names=False)


def _followed(
    place: Place,
    columns: Sequence[str | Sequence[str]] | None,
    decode: Mapping[str, Callable[[Any], Any]] | None,
    format: str | None,  # noqa: A002
    memory_mib: int,
    follow_s: float,
) -> Source:
    from shoal.data.files.opening import open_listed
    from shoal.data.following import FollowingSource

    return FollowingSource(
        place, lambda places: open_listed(places, columns, decode, format, memory_mib << 20), follow_s
    )


def _named(what: str | os.PathLike[str] | Place) -> tuple[str, str | None] | None:
    """Name and split, if it is the name of a data set. What is neither that nor there, and looks like a name, is taken
    for one that is unknown."""
    from shoal.data.registry import is_named, named

    if not isinstance(what, str):
        return None
    match = _NAMED.fullmatch(what)
    if match is None:
        return None
    if is_named(match["name"]):
        return match["name"], match["split"]
    if not Path(what).exists() and not Path(match["name"]).suffix:
        named(match["name"])  # raises
    return None


def is_prepared(what: str) -> bool:
    """Whether `what` is the folder of a prepared data set. Raises `ConfigError` for an unknown name."""
    from shoal.data.files.opening import prepared_at

    return not is_name(what) and prepared_at(Place.of(what), "") is not None


def is_name(what: str) -> bool:
    """Whether `what` names a data set, with or without a split. Raises `ConfigError` for an unknown name."""
    return _named(what) is not None


def _refuse_for_names(name: str, **stated: object) -> None:
    for setting, value in stated.items():
        if value is not None:
            raise ConfigError(f"{setting}= is for files; {name!r} is the name of a data set")


def _open_named(name: str, split: str | None) -> Source:
    from shoal.data.registry import load_split, named
    from shoal.data.source import open_source

    found = named(name)
    if split is None:
        raise ConfigError(f"the data set {name!r} has splits: say which, e.g. shoal.data.open({name!r}, 'train')")

    def load(part: str) -> Source:
        return open_source(load_split(found, part), f"{name}:{part}")

    if any(part.name in ("", ALL) for part in parse_split(split)):
        raise ConfigError(
            f"the split {split!r} of {name!r} names none of {', '.join(found.splits)}: write e.g. "
            f"{'+'.join(found.splits)} for all"
        )
    return _combined(load, split, name)


def _combined(load: Callable[[str], Source], split: str | None, where: str, *, has_names: bool = True) -> Source:
    """What `split` says of the sources that `load` gives for its names (empty: everything)."""
    from shoal.data.parts import joined, part_of

    parts = parse_split(split) if split is not None else (Slice(""),)
    if not has_names and (odd := next((part.name for part in parts if part.name not in ("", ALL)), None)):
        raise ConfigError(f"{where} has no split {odd!r}: slice it, e.g. with '[:10%]'")
    sources: dict[str, Source] = {}
    chosen = []
    for part in parts:
        if part.name not in sources:
            sources[part.name] = load(part.name)
            if len(sources[part.name]) == 0:
                raise ConfigError(f"{where} is empty: it has no samples")
        source = sources[part.name]
        try:
            rows = part.rows(len(source))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        chosen.append(part_of(source, rows))
    return joined(chosen)
