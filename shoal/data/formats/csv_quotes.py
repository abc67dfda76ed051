"""Quotes in CSV: where values and records end. Pure functions."""

from __future__ import annotations

import numpy as np


def is_open(record: bytes, separator: str) -> bool:
    """Whether a value begins with a quote that nothing in the line closes."""
    if record.count(b'"') % 2 == 0:
        return False
    return _open_quote(record.decode("utf-8", "replace").rstrip("\r\n"), separator) >= 0


def _open_quote(line: str, separator: str) -> int:
    at, begins = 0, True
    while at < len(line):
        if begins and line[at] == '"':
            closing = _closing(line, at + 1)
            if closing < 0:
                return at
            at, begins = closing, False
        else:
            begins = line[at] == separator
        at += 1
    return -1


def spans(text: bytes, separator: str) -> bool:
    """Whether the value that is open at the end of the first line is closed in a later one, as the end of a value."""
    whole = text.decode("utf-8", "replace")
    opened = _open_quote(whole[: whole.find("\n")].rstrip("\r"), separator)
    closing = _closing(whole, opened + 1) if opened >= 0 else -1
    return closing >= 0 and whole[closing + 1 : closing + 2] in (separator, "\r", "\n", "")


def _closing(text: str, at: int) -> int:
    """Where the quote is that ends the value; two together are one within it."""
    while (at := text.find('"', at)) >= 0:
        if text[at + 1 : at + 2] != '"':
            return at
        at += 2
    return -1


def record_ends(text: bytes) -> list[int]:
    """Where the records end: after line ends before which there is an even number of quotes."""
    array = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(array == 10)
    quotes = np.flatnonzero(array == 34)
    found: list[int] = (ends[np.searchsorted(quotes, ends) % 2 == 0] + 1).tolist()
    return found


def last_record_end(text: bytes) -> int:
    return (record_ends(text) or [0])[-1]
