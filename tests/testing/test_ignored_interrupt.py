"""`make test &` in a script: SIGINT is ignored by all that it starts, and tests that send it pass all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

TESTS = Path(__file__).parents[1]
TO_A_CHILD = "launch/test_interrupts.py::test_a_run_that_was_complete_anyway_is_complete"
TO_ITSELF = "launch/test_parts.py::test_signals_are_taken_in_and_handlers_restored"


def test_tests_that_send_an_interrupt_pass_in_the_background_of_a_script(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         *(str(TESTS / test) for test in (TO_A_CHILD, TO_ITSELF))],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), "PYTEST_ADDOPTS": f"--basetemp={tmp_path / 'temporary'}"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN, "here it was reset, too"
