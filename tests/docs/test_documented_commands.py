"""The script that runs the command lines of README and docs: what it finds there, and what makes it fail."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]

PAGE = """
Runs `shoal train x.py --workers 2` and `.venv/bin/python -m benchmarks.prepare --size 2GB`, not `python x.py`.

```sh
shoal train x.py \\
    --workers  4     # as many as you like
make demo && echo "a # b"
```

```console
$ shoal data inspect data
rows 3
```

```python
shoal = 1
```
"""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("documented_commands", ROOT / "scripts" / "documented_commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def table(commands: ModuleType, **given: object) -> object:
    return commands.Table(**{"instead": {}, "help": frozenset(), "tested": {}, "files": {}, **given})


def test_what_is_found_in_a_page(commands: ModuleType) -> None:
    found = [(line.number, line.text, line.fenced) for line in commands.lines_of("page", PAGE)]
    assert found == [
        (5, "shoal train x.py --workers 4", True),
        (7, 'make demo && echo "a # b"', True),
        (11, "shoal data inspect data", True),
        (2, "shoal train x.py --workers 2", False),
        (2, ".venv/bin/python -m benchmarks.prepare --size 2GB", False),
    ]


def test_a_block_of_commands_says_that_it_is_one(commands: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"page:2  the block has a command and is not marked as sh: shoal doctor"):
        list(commands.lines_of("page", "```\nshoal doctor\n```\n"))


def test_a_line_runs_or_fails(commands: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, other = (commands.Line("page", number, text) for number, text in enumerate(("true", "nowhere x", "y")))
    assert commands.try_page([good, bad, other], table(commands, instead={"y": "echo z"}), tmp_path) == [bad]
    assert "nowhere: command not found\n\nexit status 127" in capsys.readouterr().out


def test_options_that_the_help_does_not_know_fail(commands: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "helpful").write_text("echo '  -w, --workers N   so many'")
    asked = frozenset({"sh helpful --workers 2", "sh helpful --worker 2"})
    known, unknown = (commands.Line("page", 1, text) for text in sorted(asked, reverse=True))
    assert commands.try_page([known, unknown], table(commands, help=asked), tmp_path) == [unknown]


def test_the_table_names_only_what_is_documented(commands: ModuleType) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    lines = [line for page in pages for line in commands.lines_of(str(page.relative_to(ROOT)), page.read_text())]
    assert len(lines) > 50
    told = commands.Table.read(commands.TABLE)
    assert commands.stale(lines, told) == []
    assert commands.stale(lines[:1], told) != []


def test_a_benchmark_must_name_its_interpreter(
    commands: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python3 benchmarks/x.py` would be one without PyTorch, where no environment is active."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = [
        commands.run(f"echo $PATH  # {words}", tmp_path)[1] for words in ("python3 x.py", "python3 benchmarks/x.py")
    ]
    assert [str(ROOT / ".venv" / "bin") in path.split(":") for path in found] == [True, False]
