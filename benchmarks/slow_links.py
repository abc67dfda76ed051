"""Two hosts on a slow link: how soon, and with how many bytes, does training reach a loss? Shoal beside DDP.

    .venv/bin/python benchmarks/slow_links.py --cifar10 DIR --json slow_links.json --plot docs/slow_links.png

The hosts are network namespaces, their links shaped by tc; each has one worker with one thread. All contestants train
the same model from the same parameters on the same samples in the same order, with the same global batch and learning
rate. The loss is that of the model on a fixed part of the training samples, found out after the run (see
runners/slow_link.py); it counts when a model is there, not between two of them, so that one which is put together
every few steps only has no advantage. Bytes are counted at the interface. Contestants take turns, in an order drawn
anew in each round. Needs root, .venv-peers (benchmarks/setup_peers.sh) or --python, and an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import images, over_hosts
from benchmarks.catalogue import ROOT
from benchmarks.curves import Curve, ratios
from benchmarks.environment import describe
from benchmarks.report import Figures
from benchmarks.runners.slow_link import CURVE, TASK_VARIABLE, Task
from shoal.drill.hosts import Hosts

BASE, OPPONENT = "ddp", "powersgd"
TIMEOUT_S = 3600.0
SCRIPT = ROOT / "benchmarks/runners/slow_link_shoal.py"
MODULE = "benchmarks.runners.slow_link_ddp"


@dataclass(frozen=True)
class Work:
    """What is trained, and the loss to be reached."""

    title: str
    global_batch: int
    rate: float
    momentum: float
    steps: int
    loss: float


@dataclass(frozen=True)
class Contestant:
    """A system with its settings. `words` are options of `shoal train`; None: it is DDP."""

    title: str
    words: tuple[str, ...] | None = None
    rank: int = 0  # of PowerSGD
    shown: bool = False  # in the picture only


WORKS = {
    "mlp": Work("MLP of 10.5 M parameters", 128, 0.02, 0.9, 64, 1.65),
    "resnet20": Work("ResNet-20", 128, 0.05, 0.9, 64, 1.75),
}
RATES = {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
GOALS = {("mlp", "1gbit"): 3.0, ("mlp", "100mbit"): 20.0, ("resnet20", "1gbit"): 1.0, ("resnet20", "100mbit"): 1.0}


def _settings(*settings: str) -> tuple[str, ...]:
    return tuple(word for one in settings for word in ("--set", one))


CONTESTANTS = {
    "ddp": Contestant("plain DDP, gloo"),
    "powersgd": Contestant("DDP, PowerSGD hook, rank 2", rank=2),
    "allreduce": Contestant("Shoal allreduce", ("--strategy", "allreduce")),
    "auto": Contestant("Shoal allreduce, codec=auto", ("--strategy", "allreduce", *_settings("comm.codec=auto"))),
    "incremental": Contestant(
        "Shoal incremental, h=8, codec=powersgd:32",
        ("--strategy", "incremental", *_settings("incremental.h=8", "comm.codec=powersgd:32")),
    ),
    "incremental-auto": Contestant(
        "Shoal incremental, h=auto, codec=auto",
        ("--strategy", "incremental", *_settings("comm.codec=auto")),
    ),
    "server": Contestant("Shoal parameter-server", ("--strategy", "parameter-server", "--servers", "1"), shown=True),
    "async": Contestant("Shoal async", ("--strategy", "async", "--servers", "1"), shown=True),
}
Rounds = list[dict[str, Curve]]  # by contestant


def measure(name: str, key: str, rate: str, steps: int, data: Path, options: argparse.Namespace) -> Curve:
    """One run of one contestant on hosts of its own."""
    contestant, work = CONTESTANTS[name], WORKS[key]
    with tempfile.TemporaryDirectory(prefix="slow-links-") as directory, Hosts(over_hosts.HOSTS, rate) as hosts:
        task = Task(
            key, options.seed, steps, work.global_batch, work.rate, work.momentum, str(data), directory,
            contestant.rank,
        )  # fmt: skip
        variables = {TASK_VARIABLE: str(task.save())}
        if contestant.words is None:
            over_hosts.torch(hosts, options.python, MODULE, (), Path(directory), variables, TIMEOUT_S)
        else:
            words = (*contestant.words, "--seed", str(options.seed), "--set", "threads=1")
            run_dir = Path(directory) / "run"
            over_hosts.shoal(hosts, options.python, SCRIPT, words, run_dir, variables, TIMEOUT_S)
        return Curve.from_json(json.loads((Path(directory) / CURVE).read_text()))


def compete(key: str, rate: str, data: Path, options: argparse.Namespace) -> Rounds:
    """All rounds of one model on one link. Says on standard error how far it is."""
    rounds: Rounds = []
    for number in range(options.rounds):
        # those that are only shown take part once
        names = [name for name in options.contestants if number == 0 or not CONTESTANTS[name].shown]
        names = [name for name in names if not CONTESTANTS[name].shown or (options.plot and rate == options.plot_rate)]
        found: dict[str, Curve] = {}
        for name in random.Random(f"{options.seed}/{key}/{rate}/{number}").sample(names, len(names)):
            begun = time.perf_counter()
            try:
                found[name] = measure(name, key, rate, options.steps or WORKS[key].steps, data, options)
            except over_hosts.Failed as failure:
                sys.stderr.write(f"{key}, {rate}, {name}: {failure}\n")
                continue
            there = found[name].reached(options.loss or WORKS[key].loss)
            last = found[name].points[-1]
            word = "not there" if there is None else f"step {there.step}, {there.seconds:.2f} s"
            sys.stderr.write(
                f"[{number + 1}/{options.rounds}] {key}, {rate}, {name}: {word}; loss {last.loss:.3f} after "
                f"{last.step} steps, {last.seconds:.1f} s, {last.sent_bytes / 1e6:.1f} MB "
                f"(all in all {time.perf_counter() - begun:.0f} s)\n"
            )
        rounds.append(found)
    return rounds


def table(key: str, rate: str, rounds: Rounds, names: Sequence[str], loss: float) -> str:
    """Markdown for one model on one link."""
    lines = [
        f"| {WORKS[key].title}, {RATES.get(rate, rate)} | seconds to a loss of {loss:g}, median | steps "
        f"| times as fast as DDP | each round | times as fast as PowerSGD | MB sent by a host | ms a step |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        curves = [one[name] for one in rounds if name in one]
        if not curves:
            continue
        there = [point for curve in curves if (point := curve.reached(loss)) is not None]
        step = Figures.of(1e3 * step_s for curve in curves if (step_s := curve.step_s()) is not None)
        shown = "" if step is None else f"{step.median:,.0f}"
        if not there:
            best = min(point.loss for curve in curves for point in curve.points)
            lines.append(f"| {CONTESTANTS[name].title} | not reached ({best:.2f}) | | | | | | {shown} |")
            continue
        seconds, sent = Figures.of(one.seconds for one in there), Figures.of(one.sent_bytes for one in there)
        steps = Figures.of(one.step for one in there)
        assert seconds is not None
        assert sent is not None
        assert steps is not None
        to_base, to_opponent = ratios(rounds, name, BASE, loss), ratios(rounds, name, OPPONENT, loss)
        lines.append(
            f"| {CONTESTANTS[name].title} | {seconds.median:.2f} | {steps.median:.0f} "
            f"| {_ratio(to_base if name != BASE else [])} | {', '.join(f'{one:.1f}' for one in to_base)} "
            f"| {_ratio(to_opponent if name != OPPONENT else [])} | {sent.median / 1e6:,.1f} | {shown} |"
        )
    if (key, rate) in GOALS:
        lines.append(f"\nGoal: {GOALS[key, rate]:g} times as fast as plain DDP, and not slower than PowerSGD.")
    return "\n".join(lines)


def _ratio(values: Sequence[float]) -> str:
    figures = Figures.of(values)
    return "" if figures is None else f"{figures.median:.2f}"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cifar10", type=Path, metavar="DIR", help="with train.parquet; left out: made-up images")
    parser.add_argument("--rounds", type=int, default=3, help="of all contestants (default 3)")
    parser.add_argument("--steps", type=int, help="of a run (default: as many as the loss takes)")
    parser.add_argument("--loss", type=float, help="to be reached (default: that of the model)")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), help="default: all")
    parser.add_argument("--rates", nargs="+", default=list(RATES), help="of the links (default 1gbit 100mbit)")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), help="default: all")
    parser.add_argument("--quick", action="store_true", help="one round, the first link only, few steps")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and order (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there as Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the MLP's first round there (matplotlib)")
    parser.add_argument("--plot-rate", default="100mbit", help="the link that is drawn (default 100mbit)")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="measure nothing: show what is there")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-peers/bin/python", help="with torch and Shoal")
    options = parser.parse_args(words)
    if options.quick:
        options.rounds, options.rates, options.steps = 1, options.rates[:1], options.steps or 8
    return options


def everything(options: argparse.Namespace) -> dict[str, Any]:
    """All that was measured, as JSON."""
    environment = describe(options.python, ["torch", "shoal"])
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory(prefix="slow-links-data-") as data:
        count = max((options.steps or WORKS[key].steps) * WORKS[key].global_batch for key in options.works)
        images.save(
            Path(data),
            images.cifar10(options.cifar10, count) if options.cifar10 else images.made_up(options.seed, count),
        )
        for key in options.works:
            for rate in options.rates:
                rounds = compete(key, rate, Path(data), options)
                found.setdefault(key, {})[rate] = [
                    {name: curve.to_json() for name, curve in one.items()} for one in rounds
                ]
    return {
        "environment": environment,
        "settings": {
            "works": {key: vars(WORKS[key]) for key in options.works},
            "contestants": {name: vars(CONTESTANTS[name]) for name in options.contestants},
            "data": "CIFAR-10" if options.cifar10 else "made up",
            "rounds": options.rounds,
            "seed": options.seed,
            "load_average": list(os.getloadavg()),
        },
        "curves": found,  # by model, link, round and contestant: step, seconds, bytes, loss
    }


def main() -> None:
    options = arguments()
    whole = json.loads(options.from_json.read_text()) if options.from_json else everything(options)
    if options.json:
        options.json.write_text(json.dumps(whole, indent=1) + "\n")
    tables = []
    for key, by_rate in whole["curves"].items():
        for rate, rounds in by_rate.items():
            curves = [{name: Curve.from_json(rows) for name, rows in one.items()} for one in rounds]
            loss = options.loss or WORKS[key].loss
            tables.append(table(key, rate, curves, list(CONTESTANTS), loss))
            if options.plot and (key, rate) == (next(iter(whole["curves"])), options.plot_rate):
                from benchmarks.slow_links_plot import draw

                titles = {name: one.title for name, one in CONTESTANTS.items()}
                draw(options.plot, curves[0], titles, loss, f"{WORKS[key].title}, 2 hosts, {RATES[rate]}")
    environment = whole["environment"]
    caption = (
        f"2 hosts with one worker and one thread each, {whole['settings']['data']}, global batch 128, "
        f"{environment['cpu']} ({environment['cores']} cores), torch {environment['versions']['torch']}, "
        f"{whole['settings']['rounds']} rounds."
    )
    text = "\n\n".join(tables) + f"\n\n{caption}\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
