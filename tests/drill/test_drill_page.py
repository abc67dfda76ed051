"""The timeline, its picture and the page: whole, harmless, and the same facts as the report."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from drill_cases import calm, hits, hurt, step
from rich.console import Console

from shoal.drill.inject import Missed
from shoal.drill.kinds import KINDS
from shoal.drill.measure import Recorded, measure
from shoal.drill.page import page
from shoal.drill.picture import ICONS, draw, ticks
from shoal.drill.report import Limits, Report
from shoal.drill.schedule import FaultPlan
from shoal.drill.show import show
from shoal.drill.timeline import thin, timeline

pytestmark = pytest.mark.unit


@pytest.fixture
def found() -> Report:
    run = hurt()
    missed = [Missed(FaultPlan("kill", 99), "the run was over first")]
    return measure(
        calm(), run, hits(run), missed, Limits(), 3e-7, "<b>.py", "shoal drill '<b>.py'", 0.05, "last <words>"
    )


def test_a_replacement_stands_in_the_lane_of_the_one_it_replaces(found: Report) -> None:
    line = timeline(calm(), hurt(), found)
    assert line.lanes == 3
    assert [(life.pid, life.lane) for life in line.lives] == [(201, 0), (202, 1), (203, 2), (204, 1), (205, 2)]
    killed = line.lives[1]
    assert killed.parts == ((pytest.approx(0.1), killed.end),)
    newcomer = line.lives[3]
    assert newcomer.parts[0][0] > newcomer.begin  # at the door before it takes part
    assert [view.size for view in line.views] == [3, 2, 3, 2, 3]
    assert [round(b - a, 2) for a, b in line.pauses] == [2.3]


def test_the_calm_loss_lies_over_the_hurt_one_step_by_step(found: Report) -> None:
    line = timeline(calm(), hurt(), found)
    assert line.calm_loss == line.hurt_loss
    assert len(line.hurt_loss) == 100


def test_the_picture_is_well_formed_and_has_a_mark_for_each_fault(found: Report) -> None:
    root = ElementTree.fromstring(draw(timeline(calm(), hurt(), found), found))
    space = "{http://www.w3.org/2000/svg}"
    marks = [group for group in root.iter(f"{space}g") if group.get("class") == "fault"]
    assert len(marks) == 3
    titles = [mark.findtext(f"{space}title") for mark in marks]
    assert titles[0] == "kill: worker 1 on home, after step 20, longest pause 0.25 s"
    assert sum(line.get("class") == "view" for line in root.iter(f"{space}line")) == 5
    for box in root.iter(f"{space}rect"):
        assert 0 <= float(box.get("x", -1)) <= 1080
        assert float(box.get("width", 0)) > 0


def test_the_page_needs_nothing_else_and_escapes_what_it_is_told(found: Report) -> None:
    text = page(found, timeline(calm(), hurt(), found))
    assert "<b>.py" not in text
    assert "last &lt;words&gt;" in text
    assert not re.search(r"<script|<link|<img|@import|url\(|src=", text)
    assert set(re.findall(r"https?://[^\"' <]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme:dark" in text
    assert "No law broken, but not all faults came" in text
    assert "All laws held" in page(replace(found, faults=found.faults[:3]), timeline(calm(), hurt(), found))


def test_a_broken_law_is_what_one_sees_first(found: Report) -> None:
    run = hurt(coverage={"expected": 1000, "once": 999, "missed": 1, "repeated": 0})
    broken = measure(calm(), run, hits(run), [], Limits(), 3e-7)
    text = page(broken, timeline(calm(), run, broken))
    assert '<h1 class="bad">A law was broken</h1>' in text
    assert text.count('class="law broken"') == 1


def test_a_run_that_left_no_events_has_a_page_too() -> None:
    nothing = Recorded([], {}, 1)
    found = measure(calm(), nothing, [], [Missed(FaultPlan("kill", 1), "the run was over first")], Limits(), None)
    assert "<svg" in page(found, timeline(calm(), nothing, found))


def test_the_terminal_says_the_same(found: Report) -> None:
    out = io.StringIO()
    show(found, Console(file=out, width=160, highlight=False))
    text = out.getvalue()
    for words in (
        "worker 1 on home",
        "0.250 s",
        "2.30 s",
        "all 1000 samples once",
        "3.00e-07 relative",
        "last <words>",
    ):
        assert words in text
    assert "not carried out: the run was over first" in text
    assert text.count("held") == 4
    out = io.StringIO()
    show(replace(found, faults=found.faults[:3]), Console(file=out, width=160, highlight=False))
    assert out.getvalue().rstrip().endswith("all laws held under 3 faults")


def test_every_kind_has_a_sign() -> None:
    assert set(ICONS) == {KINDS.get(name).act for name in KINDS}


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    points = [(float(at), float(at % 7)) for at in range(100_000)]
    fewer = thin(points)
    assert len(fewer) <= 602
    assert (fewer[0], fewer[-1]) == (points[0], points[-1])
    assert thin(points[:10]) == tuple(points[:10])


def test_ticks_are_round() -> None:
    assert ticks(7.6) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert ticks(0.5)[:2] == [0.0, 0.1]
    assert ticks(0.0) == [0.0]


def test_a_single_step_makes_a_picture() -> None:
    run = Recorded([step(0.0, 1)], {})
    found = measure(run, run, [], [], Limits(), 0.0)
    assert "<svg" in page(found, timeline(run, run, found))
