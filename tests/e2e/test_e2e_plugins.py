"""Consistencies and placements of the user's own, by name: workers and servers import the module that has them."""

from __future__ import annotations

import pytest
from e2e import Shoal
from e2e_script import program

pytestmark = pytest.mark.ranks

# what is asked leaves a trace, with the process that was asked
MINE = """
import os
from dataclasses import dataclass
from pathlib import Path
from shoal.core.consistency import Consistency, consistencies
from shoal.store.keys import Slice
from shoal.store.placement import Placement, placements

def note(what):
    Path(__file__).with_name(f"asked-{what}-{os.getpid()}").touch()

@consistencies.add("patient")
@dataclass(frozen=True)
class Patient(Consistency):
    bound = 1

    def allows(self, clock, slowest):
        note("patient")
        return clock <= slowest + self.bound

    def __str__(self):
        return "patient"

    @classmethod
    def from_argument(cls, argument):
        return cls()

@placements.add("all on the last")
def on_the_last(keys, servers, standing):
    note("placement")
    return Placement((*[()] * (servers - 1), tuple(Slice(key, 0, key.units) for key in keys)))
"""
SERVED = ("--workers", "2", "--servers", "2", "--strategy", "parameter-server")


def asked(shoal: Shoal, what: str) -> set[int]:
    """The processes that were asked."""
    return {int(path.name.rpartition("-")[2]) for path in shoal.directory.glob(f"asked-{what}-*")}


def test_a_run_with_a_consistency_and_a_placement_of_ones_own(shoal_here: Shoal) -> None:
    shoal_here.write(MINE, "mine.py")
    shoal_here.write(program())
    settings = ("plugins=[mine]", "consistency=patient", "placement=all on the last")
    words = [word for setting in settings for word in ("--set", f"server.{setting}")]
    done = shoal_here.train(*SERVED, *words, "--run-dir", "run")
    assert done.status == 0, done.err
    run = shoal_here.run
    assert run.summary()["coverage"] == {"expected": 474, "once": 474, "missed": 0, "repeated": 0}
    members = {(one["role"], one["rank"]): one["pid"] for one in run.events("member_joined")}
    assert asked(shoal_here, "patient") == {members["server", 0]}, "the first server deals out tasks"
    assert asked(shoal_here, "placement") == {members["worker", 0], members["worker", 1]}
    assert run.summary()["staleness"]["max"] <= 3, "though the first server, which knows what is old, holds nothing"


def test_a_module_that_is_not_there_is_named(shoal_here: Shoal) -> None:
    shoal_here.write(program())
    done = shoal_here.train(*SERVED, "--set", "server.plugins=[nowhere]", "--run-dir", "run")
    assert done.status != 0
    assert "server.plugins names 'nowhere', which cannot be imported" in done.err
