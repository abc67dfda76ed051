"""The pure parts of the benchmarks on slow links, frozen workers and accuracy: what is made of what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import accuracy, frozen_worker, images, slow_links
from benchmarks.commits import Commit
from benchmarks.curves import Curve, Point, ratios

pytestmark = pytest.mark.unit


def curve(*rows: tuple[int, float, float, float]) -> Curve:
    return Curve(tuple(Point(*row) for row in rows))


SLOW = curve((0, 0.0, 0, 2.3), (1, 4.0, 40e6, 2.0), (2, 8.0, 80e6, 1.8))
QUICK = curve((0, 0.0, 0, 2.3), (2, 0.5, 1e6, 1.9))


def test_a_loss_is_reached_where_a_model_is_that_good_and_not_between_two() -> None:
    assert SLOW.reached(2.0) == Point(1, 4.0, 40e6, 2.0)
    assert SLOW.reached(1.99) == Point(2, 8.0, 80e6, 1.8)
    assert SLOW.reached(1.7) is None


def test_a_loss_that_gets_worse_again_was_reached() -> None:
    assert curve((1, 1.0, 0, 2.0), (2, 2.0, 0, 2.2)).reached(2.0) is not None


def test_the_time_of_a_step_is_that_of_all_steps_between_two_models() -> None:
    assert SLOW.step_s() == 4.0
    assert QUICK.step_s() == 0.25
    assert curve((0, 0.0, 0, 2.3)).step_s() is None


def test_a_curve_comes_back_from_its_file() -> None:
    assert Curve.from_json(SLOW.to_json()) == SLOW


def test_ratios_are_of_one_round_and_leave_out_who_was_not_there() -> None:
    rounds = [{"ddp": SLOW, "shoal": QUICK}, {"ddp": SLOW}, {"shoal": QUICK, "ddp": curve((1, 2.0, 0, 1.9))}]
    assert ratios(rounds, "shoal", "ddp", 1.9) == [16.0, 4.0]
    assert ratios(rounds, "shoal", "ddp", 1.0) == []


def test_the_table_of_slow_links_has_times_ratios_and_who_was_not_there() -> None:
    loss = slow_links.WORKS["mlp"].loss
    there = curve((0, 0.0, 0, 2.3), (9, 10.0, 5e6, loss))
    base = curve((0, 0.0, 0, 2.3), (8, 200.0, 50e6, loss))
    never = curve((0, 0.0, 0, 2.3), (8, 200.0, 50e6, loss + 0.25))
    text = slow_links.table(
        "mlp", "100mbit", [{"ddp": base, "incremental": there, "auto": never}], list(slow_links.CONTESTANTS), loss
    )
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()}
    ours = lines[slow_links.CONTESTANTS["incremental"].title]
    assert "| 10.00 | 9 | 20.00 |" in ours
    assert "| 5.0 |" in ours
    assert f"not reached ({loss + 0.25:.2f})" in lines[slow_links.CONTESTANTS["auto"].title]
    assert "20 times as fast" in text


def test_quick_means_one_round_of_few_steps_on_one_link() -> None:
    options = slow_links.arguments(["--quick"])
    assert (options.rounds, len(options.rates)) == (1, 1)
    assert options.steps < slow_links.WORKS["mlp"].steps


def test_made_up_images_can_be_learned_and_are_the_same_every_time() -> None:
    x, y = images.made_up(3, 400)
    again = images.made_up(3, 400)
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])
    # the mean image of a class, from one half of them, tells the class of the other half far better than chance
    means = np.stack([x[:200][y[:200] == label].mean(axis=0) for label in range(images.CLASSES)])
    distances = ((x[200:, None] - means[None]) ** 2).sum(axis=(2, 3, 4))
    assert (distances.argmin(axis=1) == y[200:]).mean() > 0.5


def commits(pid: int, *times: float) -> list[Commit]:
    return [Commit(moment, number, 3, pid) for number, moment in enumerate(times)]


def test_a_gap_counts_from_the_last_commit_before_it_up_to_the_end_of_the_freeze() -> None:
    mine = commits(1, 0.0, 1.0, 2.0, 9.0, 20.0)
    assert frozen_worker.longest_gap(mine, 1, since=1.5, until=10.0) == 7.0
    assert frozen_worker.longest_gap(mine, 1, since=9.5, until=19.0) == 10.0  # it has not ended
    assert frozen_worker.longest_gap(mine, 2, since=0.0, until=3.0) == 3.0  # it has committed nothing at all


def test_a_freeze_is_judged_by_the_others_and_by_the_worst_of_them() -> None:
    seconds = [float(second) for second in range(20)]
    steady, stalled = commits(1, *seconds), commits(2, *seconds[:11])
    frozen = commits(3, *seconds[:11])
    found = frozen_worker.judged("bsp", "long", [*steady, *stalled, *frozen], [1, 2], at=10.0, until=19.0)
    assert found.usual_s == 1.0
    assert found.pause_s == 9.0
    assert found.share == pytest.approx(0.5)


def ended(way: str, seed: int, right: float, sent: float | None = None) -> accuracy.Ended:
    return accuracy.Ended("ResNet-20", way, seed, 1 - right, right, 10, sent)


def test_accuracy_is_compared_seed_by_seed() -> None:
    runs = [
        ended("allreduce", 0, 0.80, 500.0),
        ended("incremental", 0, 0.79, 4.0),
        ended("allreduce", 1, 0.82, 500.0),
        ended("incremental", 1, 0.82, 4.0),
        ended("incremental", 2, 0.10, 4.0),  # without its pair: not compared
    ]
    line = accuracy.table(runs).splitlines()[-1]
    assert "-0.50 (-1.00, +0.00)" in line
    assert line.endswith("| 125 |")


def test_a_way_becomes_options_and_a_name_for_a_directory() -> None:
    way = accuracy.Way("incremental", ("incremental.h=16", "comm.codec=powersgd:4"))
    assert way.words == ["--strategy", "incremental", "--set", "incremental.h=16", "--set", "comm.codec=powersgd:4"]
    assert not set(way.name) & set("=:/ ")
    assert way.title == "incremental h=16 comm.codec=powersgd:4"
