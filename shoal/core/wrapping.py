"""Long messages on a terminal: broken between words, while what is there to be copied stays on one line."""

from __future__ import annotations

import os
import re
from typing import IO

_NARROWEST = 40  # below that a terminal may break lines as it likes
# what stays in one piece: what stands in backticks, an option with its value, an installation, a word
_PIECE = re.compile(r"`[^`\n]*`\S*|--set \S+=\S+|--run-dir \S+|pip install (?:'[^']*'|\S+)|\S+")


def wrap(text: str, width: int, indent: str = "") -> str:
    """`text` in lines of at most `width` cells; what was broken off begins with `indent`. Lines that begin with a space
    (a traceback, a command of its own) and pieces that are longer than a line are left as they are."""
    if width < _NARROWEST:
        return text
    return "\n".join(_wrapped(line, width, indent) for line in text.split("\n"))


def _wrapped(line: str, width: int, indent: str) -> str:
    if len(line) <= width or line[:1].isspace():
        return line
    lines, at = [""], 0
    for piece in _PIECE.finditer(line):
        gap = line[at : piece.start()]
        at = piece.end()
        if lines[-1].strip() and len(lines[-1]) + len(gap) + len(piece[0]) > width:
            lines.append(indent + piece[0])
        else:
            lines[-1] += gap + piece[0]
    return "\n".join(lines)


def for_stream(text: str, stream: IO[str]) -> str:
    """`text` as it is written to `stream`: broken between words where that is a terminal, else as it is, so that a
    message is one line of a log."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        width = 0
    return wrap(text, width)
