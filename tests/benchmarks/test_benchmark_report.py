"""The statistics behind the tables, on figures small enough to work out by hand."""

from __future__ import annotations

import random
from statistics import median

import pytest

from benchmarks.report import Figures, Run, disagreement, ratios, summary, table

pytestmark = pytest.mark.unit


def run(peer: str, number: int, samples_per_s: float | None, checksum: float = 1.0, error: str | None = None) -> Run:
    checked = checksum if error is None else None
    return Run(peer, "mlp", number, 0.0, 1.0, samples_per_s, checksum=checked, error=error)


def test_figures_of_nine_values() -> None:
    figures = Figures.of([9, 1, 8, 2, 7, 3, 6, 4, 5])
    # of nine, the second and the eighth hold the median with a chance of 1 - 2 * (1 + 9) / 512 = 0.961
    assert figures == Figures(9, 5, 3, 7, 1, 9, (2, 8))


def test_six_values_are_the_fewest_with_an_interval() -> None:
    five, six = Figures.of(range(5)), Figures.of(range(6))
    assert five is not None
    assert five.interval is None
    assert six is not None
    assert six.interval == (0, 5)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    draw, trials, held = random.Random(1), 4000, 0
    for _ in range(trials):
        figures = Figures.of(draw.expovariate(1.0) for _ in range(9))  # skewed: median ln 2
        assert figures is not None
        assert figures.interval is not None
        held += figures.interval[0] <= 0.6931 <= figures.interval[1]
    assert 0.95 <= held / trials <= 0.975  # 0.961 in truth, three standard errors either way


def test_no_values_no_figures() -> None:
    assert Figures.of([]) is None


def test_ratios_are_taken_within_a_round() -> None:
    # the machine is ten times as fast in round 1: the ratio of the medians would say 5.5 / 1.5
    runs = [run("ddp", 0, 1), run("ddp", 1, 10), run("ddp", 2, 1.5)]
    runs += [run("shoal", 0, 1.2), run("shoal", 1, 11), run("shoal", 2, 5.5 * 1.5)]
    figures = ratios(runs, "mlp", "shoal", "ddp")
    assert figures is not None
    assert figures.median == pytest.approx(1.2)
    assert figures.count == 3


def test_a_round_in_which_one_failed_has_no_ratio() -> None:
    runs = [
        run("ddp", 0, 1),
        run("ddp", 1, 1),
        run("shoal", 0, None, error="out of memory"),
        run("shoal", 1, 3),
    ]
    figures = ratios(runs, "mlp", "shoal", "ddp")
    assert figures is not None
    assert (figures.count, figures.median) == (1, 3)


def test_runs_of_another_workload_do_not_count() -> None:
    other = Run("shoal", "resnet20", 0, 0.0, 1.0, 100.0)
    assert ratios([run("ddp", 0, 1), other], "mlp", "shoal", "ddp") is None


def test_other_parameters_are_noticed_in_whichever_round() -> None:
    runs = [
        run("ddp", 0, 1, checksum=2.0),
        run("shoal", 0, 1, checksum=2.0),
        run("shoal", 1, 1, checksum=2.2),
    ]
    assert disagreement(runs, "mlp", "shoal", "ddp") == pytest.approx(0.1)


def test_the_table_says_why_a_peer_is_missing_and_how_often_one_failed() -> None:
    runs = [
        run("ddp", 0, 100),
        run("ddp", 1, None, error="exit status 1: no memory"),
        run("ray", 0, None, error="lost"),
    ]
    titles = {"ddp": "raw DDP", "ray": "Ray Train", "lightning": "Lightning", "shoal": "Shoal"}
    lines = table(runs, "mlp", titles, {"lightning": "skipped: not installed"}, "ddp", "shoal").splitlines()
    assert "| raw DDP | 100 | 100 to 100 | 1 (1 failed) |" in lines[2]
    assert "failed: lost" in lines[3]
    assert "skipped: not installed" in lines[4]
    assert "not run" in lines[5]
    assert len({line.count("|") for line in lines}) == 1


def test_the_table_shows_ratios_both_ways() -> None:
    runs = [run("ddp", n, 100 + n) for n in range(9)] + [run("shoal", n, 1.5 * (100 + n)) for n in range(9)]
    lines = table(runs, "mlp", {"ddp": "raw DDP", "shoal": "Shoal"}, {}, "ddp", "shoal").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    to_ddp, of_ours = slice(4, 6), slice(6, 8)
    assert cells[2][to_ddp] == cells[3][of_ours] == ["", ""]  # nobody is compared with itself
    assert cells[3][to_ddp] == cells[2][of_ours] == ["1.50", "1.50 to 1.50"]


def test_the_summary_holds_the_same_figures() -> None:
    runs = [run("ddp", n, 100.0 + n) for n in range(9)] + [run("shoal", n, 200.0) for n in range(9)]
    figures = summary(runs, ["mlp"], ["ddp", "shoal"], "ddp", "shoal")["mlp"]
    assert figures["ddp"]["samples_per_s"]["median"] == 104
    assert figures["shoal"]["times_yardstick"]["median"] == pytest.approx(median(200 / (100 + n) for n in range(9)))
