"""`make demo`: what it says is what was, and Ctrl-C leaves nothing running. That it comes to its happy end, CI sees."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from e2e import ROOT, Process, descendants, eventually

DEMO = ROOT / "scripts" / "demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, its runs in the folder of the test."""
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--dir", str(tmp_path / "runs")])
    return module


def told(demo: ModuleType, differs: dict[str, Any]) -> Callable[..., Any]:
    """Instead of a run: what it would have told, and for the killed one what is different."""
    same = {"steps": 2, "samples": 8, "params_sha256": "ab" * 32, "final": {"test_accuracy": 0.5}}
    fault = {"member": "worker 1 on here", "cause": "killed", "resumed_s": 0.1}

    def train(name: str, directory: Path, workers: int, meanwhile: object = None) -> Any:
        coverage = {"expected": 8, "once": 8}
        summary = {**same, "coverage": coverage, "faults": [fault], **(differs if meanwhile is not None else {})}
        return demo.Run(name, summary)

    return train


@pytest.mark.parametrize(
    ("differs", "status"),
    [({}, 0), ({"params_sha256": "cd" * 32}, 1), ({"coverage": {"expected": 8, "once": 7}}, 1)],
)
def test_bits_and_samples_decide(
    demo: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    differs: dict[str, Any],
    status: int,
) -> None:
    monkeypatch.setattr(demo, "train", told(demo, differs))
    views = [{"kind": "view", "members": members} for members in ("abc", "ac", "acd")]
    monkeypatch.setattr(demo, "events", lambda directory: views)
    assert demo.main() == status
    out, err = capsys.readouterr()
    assert "2 workers trained on after 0.10 s, then a new worker joined them" in out
    assert ("The same weights, to the last bit" in out) == (status == 0)
    assert ("the three results are not the same" in err) == (status == 1)
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.ranks
def test_a_run_that_fails_is_shown(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SCRIPT", "examples/nowhere.py")
    assert demo.main() == 1
    err = capsys.readouterr().err
    assert err.startswith("demo: the run failed (exit status 2):\n\nshoal: error: ")
    assert "examples/nowhere.py" in err


@pytest.mark.ranks
def test_ctrl_c_leaves_nothing_running(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start([sys.executable, str(DEMO), "--dir", str(tmp_path / "runs")])
    eventually(lambda: len(descendants(process.pid)) > 1)
    below = descendants(process.pid)
    process.kill(signal.SIGINT)
    done = process.end()
    assert done.status == 130, done
    assert "demo: interrupted" in done.err
    assert "Traceback" not in done.err
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
