"""What raw files there are: a file, a folder or a pattern, all of one format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from shoal.core.errors import nearest
from shoal.data.formats.base import Format, FormatError, OnBad, format_named, formats
from shoal.data.places import AccessError, Entry, Place

Found = tuple[Entry, Format]
_PATTERN = re.compile(r"[*?\[]")


def find(place: Place, format: str | None = None) -> list[Found]:  # noqa: A002 - the word for it
    """The files of a source in order of their names, with their format: that of their endings, which must be one, or
    `format`. Empty files are left out. Raises `AccessError` where nothing is, `FormatError` where it is unclear what
    the files are."""
    entries = _listed(place)
    if not entries:
        raise AccessError(f"{place} has no files: check the path")
    if format is not None:
        chosen = format_named(format)
        entries = [entry for entry in entries if _ends(entry, chosen)] or entries
        found = [(entry, chosen) for entry in entries]
    else:
        found = _by_ending(place, entries)
    full = [(entry, one) for entry, one in found if entry.nbytes]
    if not full:
        raise FormatError(f"{place} holds nothing: {_files(len(found))} of 0 bytes")
    return full


def read_all(found: Sequence[Found], schema: Any, on_bad: OnBad, block_bytes: int = 64 << 20) -> Iterator[Any]:
    """All records of all files, in order."""
    for entry, one in found:
        for split in one.splits(entry, block_bytes):
            yield from format_named(split.format).read(split, schema, on_bad)


def is_pattern(url: str) -> bool:
    return _PATTERN.search(url) is not None


def _listed(place: Place) -> list[Entry]:
    if place.protocol in ("http", "https"):  # a web server lists nothing
        if is_pattern(place.url.partition("?")[0]):
            raise AccessError(f"{place}: a web server cannot be searched by a pattern: name a file")
        return [Entry(place, place.nbytes(), "")]
    if not is_pattern(place.url) or (place.is_local and place.exists()):
        return place.files()
    fixed = place.url[: _PATTERN.search(place.url).start()].rpartition("/")[0]  # type: ignore[union-attr]  # it is one
    root = Place(fixed or "/", place.options)
    matches = _expression(place.url[len(fixed) :].lstrip("/")).fullmatch
    entries = [entry for entry in root.files() if matches(entry.place.url[len(root.url) :].lstrip("/"))]
    if not entries:
        raise AccessError(f"nothing fits {place}: check the pattern ({_files(len(root.files()))} below {root})")
    return entries


def _expression(pattern: str) -> re.Pattern[str]:
    """As shells have it: `*` and `?` stay within a folder, `**` does not; what lies in a folder that fits, fits."""
    parts = re.findall(r"\*\*/?|\*|\?|\[[^\]]+\]|[^*?\[]+|\[", pattern)
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(
        words.get(part) or (part.replace("[!", "[^") if len(part) > 2 and part[0] == "[" else re.escape(part))
        for part in parts
    )
    return re.compile(f"{text}(?:/.*)?")


def _by_ending(place: Place, entries: list[Entry]) -> list[Found]:
    known = {ending: name for name in formats for ending in formats.get(name).endings}
    kinds: dict[str, Entry] = {}
    found: list[Found] = []
    for entry in entries:
        ending = max((one for one in known if entry.place.name.lower().endswith(one)), key=len, default=None)
        if ending is None:
            _refuse_ending(place, entry, known, alone=len(entries) == 1)
        kinds.setdefault(known[ending], entry)
        found.append((entry, format_named(known[ending])))
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise FormatError(
            f"{place} has files of several formats: {first.place.name} is {one}, {second.place.name} is {other}. Say "
            f"which with format={one!r}, or name the files by a pattern such as *{formats.get(one).endings[0]}"
        )
    return found


def _refuse_ending(place: Place, entry: Entry, known: dict[str, str], *, alone: bool) -> NoReturn:
    _, dot, ending = entry.place.name.partition(".")
    what = f"ends in {dot}{ending}, which is no known format" if dot else "has no ending that would tell its format"
    others = "" if alone else f", or leave it out by a pattern such as {place}/*.csv"
    hint = nearest(dot + ending.lower(), known) if dot else f"known: {', '.join(sorted(known))}"
    raise FormatError(f"{entry.place} {what}: {hint}. Say it with format=…{others}")


def _ends(entry: Entry, chosen: Format) -> bool:
    return entry.place.name.lower().endswith(chosen.endings)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
