"""Runs every command line of README.md and docs/*.md, so that what is written there can be typed.

Lines of fenced `sh` and `console` blocks are run as they are, page by page, in a folder that looks like a clone; for
those that cannot be (they take long, or need another host) documented_commands.toml says what is run instead. Commands
in running text (`shoal …`, `make …`, `.venv/bin/python benchmarks/…`) are compared with the help of what they name.
Exit status 1: a line failed, or the list names one that is not documented any more. `--list` only shows what would run.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
DEADLINE_S = 300.0
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINE = re.compile(r"(?:.*\\\n)*.*\n")  # a backslash continues it
_COMMENT = re.compile(r"\s+#\s[^\"]*$")
_OPTION = re.compile(r"(?<!\S)--?[a-z][\w-]*")
_BENCHMARK = re.compile(r"\S*python3? (-m )?benchmarks[/.]|benchmarks/\S+ --")
_PROGRAMS = ("shoal", "make", "python", "python3", "pip")


@dataclass(frozen=True)
class Line:
    """A command line of a page. `text` has no comment and single spaces: what the list knows it by."""

    page: str
    number: int
    text: str
    fenced: bool = True

    def __str__(self) -> str:
        return f"{self.page}:{self.number}  {self.text}"


@dataclass(frozen=True)
class Table:
    """What is run instead of a line, which lines are only compared with their help, which pages a test runs, and files
    that commands expect to find."""

    instead: dict[str, str]
    help: frozenset[str]
    tested: dict[str, str]
    files: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Table:
        told = tomllib.loads(path.read_text())
        instead = {one["line"]: one["run"] for one in told.get("instead", [])}
        return cls(instead, frozenset(told["help"]["lines"]), told["tested"], told["files"])


def lines_of(page: str, text: str) -> Iterator[Line]:
    """The command lines of a page: those of its blocks, continued ones joined, and those in its running text.

    Raises `ValueError` for a block that has commands and does not say that it is `sh`."""
    for block in _FENCE.finditer(text):
        language = block[1]
        for found in _LINE.finditer(text, block.start(2), block.end(2)):
            number, line = text.count("\n", 0, found.start()) + 1, found[0].replace("\\\n", " ").rstrip()
            words = _COMMENT.sub("", line).split()
            if language == "console":
                words = words[1:] if words[:1] == ["$"] else []
            elif language == "" and words[:1] and words[0] in _PROGRAMS:
                raise ValueError(f"{page}:{number}  the block has a command and is not marked as sh: {line}")
            elif language != "sh":
                words = []
            if words:
                yield Line(page, number, " ".join(words))
    prose = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for span in _SPAN.finditer(prose):
        words = span[1].split()
        if len(words) > 1 and (words[0] in ("shoal", "make") or _BENCHMARK.match(" ".join(words))):
            yield Line(page, prose.count("\n", 0, span.start()) + 1, " ".join(words), fenced=False)


def asked_for(text: str) -> list[str]:
    """The words before the arguments of a command: what can be asked for help."""
    words = shlex.split(text)
    if words[0] == "shoal":
        return words[: 3 if words[1] == "data" else 2]
    return words[: 3 if words[1] == "-m" else 2]


@functools.cache
def help_of(words: tuple[str, ...], place: Path) -> tuple[bool, str]:
    command = ["make", "--dry-run", *words[1:]] if words[0] == "make" else [*words, "--help"]
    return run(shlex.join(command), place)


def run(command: str, place: Path) -> tuple[bool, str]:
    """Run a line in a shell of its own; whether it succeeded, and what it said.

    `shoal` and `python` are those of an environment in which Shoal is installed. For what lies in a clone there is no
    such environment: it must name the interpreter that has what it needs."""
    installed = [] if "benchmarks" in command else [str(ROOT / ".venv" / "bin")]
    path = os.pathsep.join([*installed, os.environ["PATH"]])
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],  # noqa: S607 - the shell of whoever types it
            cwd=place,
            env={**os.environ, "PATH": path, "COLUMNS": "200", "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return False, f"{late.stdout or ''}\nnot at an end after {DEADLINE_S:.0f} s"
    return done.returncode == 0, f"{done.stdout}\nexit status {done.returncode}"


def compare(line: Line, place: Path) -> tuple[bool, str]:
    """Whether the help of what a line names knows every option of the line."""
    words = asked_for(line.text)
    good, said = help_of(tuple(words), place)
    if not good:
        return False, said
    options = _OPTION.findall(line.text.partition(" -- ")[0]) if words[0] != "make" else []
    unknown = [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", said)]
    return not unknown, f"the help of `{' '.join(words)}` does not know {', '.join(unknown)}"


def furnish(place: Path, files: dict[str, str]) -> None:
    """Make a folder look like a clone, with the files that commands expect."""
    for entry in ROOT.iterdir():
        if entry.name not in (".git", "runs"):
            (place / entry.name).symlink_to(entry)
    for name, text in files.items():
        (place / name).write_text(text)


def what_is_run(line: Line, table: Table) -> str:
    if line.page in table.tested:
        return f"(run by {table.tested[line.page]})"
    if not line.fenced or line.text in table.help:
        return f"{' '.join(asked_for(line.text))} --help"
    return table.instead.get(line.text, line.text)


def stale(lines: list[Line], table: Table) -> list[str]:
    """What the list names that is not there."""
    texts = {line.text for line in lines if line.fenced}
    gone = [f"not documented any more: {text}" for text in (*table.instead, *table.help) if text not in texts]
    return gone + [f"there is no {test}" for test in table.tested.values() if not (ROOT / test).exists()]


def try_page(lines: list[Line], table: Table, place: Path) -> list[Line]:
    """Run the lines of a page, one after the other; returns those that failed."""
    failed = []
    for line in dict.fromkeys(lines):
        begun = time.monotonic()
        if line.fenced and line.text not in table.help:
            good, said = run(table.instead.get(line.text, line.text), place)
        else:
            good, said = compare(line, place)
        print(f"{'ok  ' if good else 'FAIL'} {time.monotonic() - begun:5.1f} s  {line}", flush=True)
        if not good:
            failed.append(line)
            print(f"     run was: {what_is_run(line, table)}\n{said}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show what would be run for each line, and run nothing")
    parser.add_argument("pages", nargs="*", help="such as docs/guide.md (default: all)")
    given = parser.parse_args()
    table = Table.read(TABLE)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = [line for page in pages for line in lines_of(str(page.relative_to(ROOT)), page.read_text())]
    if given.list:
        for line in lines:
            print(f"{line}\n    {what_is_run(line, table)}")
        return 0
    wrong = stale(lines, table)
    for page in dict.fromkeys(line.page for line in lines):
        if page in table.tested or (given.pages and page not in given.pages):
            continue
        with tempfile.TemporaryDirectory(prefix="commands-", ignore_cleanup_errors=True) as folder:
            furnish(Path(folder), table.files)
            wrong += map(str, try_page([line for line in lines if line.page == page], table, Path(folder)))
            help_of.cache_clear()
    for one in wrong:
        print(f"documented_commands: {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
