"""Does `incremental` train as well as `allreduce`, and with how many fewer bytes? Three models, both ways.

    .venv/bin/python benchmarks/accuracy.py --cifar10 DIR --runs runs/accuracy --json accuracy.json
    .venv/bin/python benchmarks/accuracy.py --text FILE --runs runs/accuracy --json bytes.json

ResNet-20, and the MLP of slow_links.py, are trained on CIFAR-10 with several seeds on two workers; what counts is the
accuracy on the test set after the last epoch. `allreduce`, whose result does not depend on the link, has both workers
on this machine, `incremental` has them on two hosts, network namespaces joined by a link (--rate), since what it does
by default depends on the link. The GPT is trained on two hosts both ways, so that bytes are what the interfaces have
sent; what counts is the loss on the test text. The same learning rates and global batch both ways, and sums of single
precision: exact ones, which a model with dropout gets by default, would double what all-reduce sends. With
--text-incremental-epochs the GPT is compared at the same loss instead of the same number of samples: local steps of an
adaptive optimizer on smaller batches learn a little less from each, and bytes are what is to be saved. It takes hours.
Each run stays below --runs: one that has ended is not done again, so that the command can be broken off, repeated, and
repeated with more seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import over_hosts, processes
from benchmarks.catalogue import ROOT
from benchmarks.environment import describe
from shoal.drill.hosts import Hosts

BASE = "allreduce"
SEEING_BENCHMARKS = {"PYTHONPATH": str(ROOT)}  # for scripts that are part of them
GPT = ROOT / "examples/shakespeare_gpt.py"
ON_IMAGES = {
    "resnet": ("ResNet-20", ROOT / "examples/cifar10_resnet.py"),
    "mlp": ("MLP of 10.5 M parameters", ROOT / "benchmarks/runners/accuracy_mlp.py"),
}
WORKERS = 2
TIMEOUT_S = 12 * 3600.0
GOAL_POINTS = 1.0  # of accuracy, that may be lost
GOAL_TIMES = 100  # fewer bytes
GOAL_LOSS = 0.01  # of the loss, that may be more


@dataclass(frozen=True)
class Way:
    """A strategy with its settings."""

    strategy: str
    settings: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        return ["--strategy", self.strategy, *(word for one in self.settings for word in ("--set", one))]

    @property
    def title(self) -> str:
        return " ".join((self.strategy, *(one.removeprefix("incremental.") for one in self.settings)))

    @property
    def name(self) -> str:
        return "-".join((self.strategy, *self.settings)).replace("=", "_").replace(":", "_")


@dataclass(frozen=True)
class Ended:
    """One run. `sent_bytes` is the mean of the hosts, None where they were one."""

    example: str
    way: str
    seed: int
    test_loss: float
    test_accuracy: float | None
    steps: int
    sent_bytes: float | None

    @staticmethod
    def of(example: str, way: Way, seed: int, summary: Mapping[str, Any], sent_bytes: float | None) -> Ended:
        final = summary["final"]
        return Ended(
            example, way.title, seed, final["test_loss"], final.get("test_accuracy"), summary["steps"], sent_bytes
        )


def finished(run_dir: Path) -> dict[str, Any] | None:
    """The summary of a run that has come to its end, None of any other."""
    path = run_dir / "summary.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found if found.get("status") == "completed" else None


def on_this_machine(model: str, way: Way, seed: int, options: argparse.Namespace) -> Ended:
    """A model on CIFAR-10, both workers here. A run that was broken off goes on from its last checkpoint."""
    title, script = ON_IMAGES[model]
    run_dir = options.runs / f"{model}-{options.epochs}-{way.name}-{seed}"
    if finished(run_dir) is None:
        run_dir.mkdir(parents=True, exist_ok=True)
        run = ["--workers", str(WORKERS), "--seed", str(seed), "--run-dir", str(run_dir), "--json", *way.words]
        nice = ["nice", "-n", str(options.nice)]
        work = [*_once(options.epochs), "--", *_images(options)]
        command = [*nice, sys.executable, "-m", "shoal", "train", str(script), *run, *work]
        done = processes.run(command, SEEING_BENCHMARKS, run_dir.with_name(f"{run_dir.name}.log"), TIMEOUT_S)
        if done.status != 0:
            raise SystemExit(f"{run_dir.name}: {done.reason()}")
    summary = finished(run_dir)
    assert summary is not None
    return Ended.of(title, way, seed, summary, None)


def over_a_link(model: str, way: Way, seed: int, options: argparse.Namespace) -> Ended:
    """A model on CIFAR-10, a worker on each of two hosts."""
    title, script = ON_IMAGES[model]
    stem = f"{model}-{options.epochs}-{options.rate}-{way.name}-{seed}"
    return _on_two_hosts(title, way, seed, stem, script, _once(options.epochs), _images(options), options.rate, options)


def text(model: str, way: Way, seed: int, options: argparse.Namespace) -> Ended:
    """The GPT, a worker on each of two hosts, whose link does not matter: bytes are counted."""
    epochs = options.text_epochs if way.strategy == BASE else options.text_incremental_epochs or options.text_epochs
    own = ["--data", str(options.text.resolve()), "--epochs", str(epochs)]
    stem = f"gpt-{epochs}-{way.name}-{seed}"
    return _on_two_hosts("GPT", way, seed, stem, GPT, _once(epochs), own, None, options)


def _once(epochs: int) -> list[str]:
    return ["--set", f"eval_every={epochs} epochs"]


def _images(options: argparse.Namespace) -> list[str]:
    return ["--data", str(options.cifar10.resolve()), "--epochs", str(options.epochs)]


def _on_two_hosts(
    example: str, way: Way, seed: int, stem: str, script: Path, settings: Sequence[str], own: Sequence[str],
    rate: str | None, options: argparse.Namespace,
) -> Ended:  # fmt: skip
    """A run that was broken off begins again: its bytes are to be counted whole."""
    options.runs.mkdir(parents=True, exist_ok=True)
    kept = options.runs / f"{stem}.json"
    if not kept.exists():
        number = 0
        while (run_dir := options.runs / f"{stem}-{number}").exists():
            number += 1
        words = ["--seed", str(seed), "--set", "checkpoint.every=never", *settings, *way.words]
        with Hosts(over_hosts.HOSTS, rate) as hosts:
            over_hosts.shoal(
                hosts, Path(sys.executable), script, words, run_dir, SEEING_BENCHMARKS, TIMEOUT_S, own, options.nice
            )
            sent = over_hosts.sent(hosts)
        summary = finished(run_dir)
        if summary is None:
            raise SystemExit(f"{run_dir.name} did not come to its end")
        kept.write_text(json.dumps(asdict(Ended.of(example, way, seed, summary, mean(sent)))))
    return Ended(**json.loads(kept.read_text()))


def table(runs: Sequence[Ended]) -> str:
    """A line for each example and way, with the mean over the seeds, beside the synchronous way."""
    lines = [
        "| example | strategy | seeds | test accuracy | points more | test loss | times the loss | MB sent by a host | "
        "times fewer |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for example in dict.fromkeys(run.example for run in runs):
        of_it = [run for run in runs if run.example == example]
        for way in dict.fromkeys(run.way for run in of_it):
            mine = {run.seed: run for run in of_it if run.way == way}
            base = {run.seed: run for run in of_it if run.way.startswith(BASE)}
            lines.append(_line(example, way, mine, {} if way.startswith(BASE) else base))
    return "\n".join(lines)


def _line(example: str, way: str, mine: Mapping[int, Ended], base: Mapping[int, Ended]) -> str:
    both = sorted(mine.keys() & base.keys())
    accuracies = [run.test_accuracy for run in mine.values() if run.test_accuracy is not None]
    sent = [run.sent_bytes for run in mine.values() if run.sent_bytes is not None]
    more = [
        100 * (first - second)
        for seed in both
        if (first := mine[seed].test_accuracy) is not None and (second := base[seed].test_accuracy) is not None
    ]
    times = [mine[seed].test_loss / base[seed].test_loss for seed in both]
    fewer = [
        first / second
        for seed in both
        if (second := mine[seed].sent_bytes) is not None and (first := base[seed].sent_bytes) is not None
    ]
    cells = [
        example,
        way,
        f"{len(mine)}",
        _mean(accuracies, lambda value: f"{value:.2%}"),
        _mean(more, lambda value: f"{value:+.2f}", each=True),
        _mean([run.test_loss for run in mine.values()], lambda value: f"{value:.4f}"),
        _mean(times, lambda value: f"{value:.3f}"),
        _mean(sent, lambda value: f"{value / 1e6:,.1f}"),
        _mean(fewer, lambda value: f"{value:,.0f}"),
    ]
    return f"| {' | '.join(cells)} |"


def _mean(values: Sequence[float], show: Any, each: bool = False) -> str:
    if not values:
        return ""
    single = f" ({', '.join(show(value) for value in values)})" if each and len(values) > 1 else ""
    return f"{show(mean(values))}{single}"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cifar10", type=Path, metavar="DIR", help="as examples/cifar10_resnet.py takes it")
    parser.add_argument("--text", type=Path, metavar="FILE", help="as examples/shakespeare_gpt.py takes it")
    parser.add_argument("--models", nargs="+", choices=ON_IMAGES, default=list(ON_IMAGES), help="on CIFAR-10")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default 0 1 2)")
    parser.add_argument("--epochs", type=int, default=4, help="on CIFAR-10 (default 4)")
    parser.add_argument("--text-epochs", type=int, default=10, help="on the text (default 10)")
    parser.add_argument(
        "--incremental", nargs="+", metavar="KEY=VALUE", default=["comm.codec=int8"],
        help="settings on CIFAR-10 (default comm.codec=int8: local steps as the link asks for)",
    )  # fmt: skip
    parser.add_argument(
        "--text-incremental", nargs="+", metavar="KEY=VALUE", default=["incremental.h=64", "comm.codec=int8"],
        help="settings on the text (default incremental.h=64 comm.codec=int8)",
    )  # fmt: skip
    parser.add_argument(
        "--text-incremental-epochs", type=int, help="on the text, of `incremental` (default: as many as of allreduce)"
    )
    parser.add_argument("--rate", default="100mbit", help="of the link, on CIFAR-10 (default 100mbit)")
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="where runs are kept")
    parser.add_argument("--nice", type=int, default=0, help="of the workers (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    options = parser.parse_args(words)
    if options.cifar10 is None and options.text is None:
        parser.error("give --cifar10 or --text, or both")
    return options


def main() -> None:
    options = arguments()
    options.runs = options.runs.resolve()
    found: list[Ended] = []
    parts = [
        *(
            (options.cifar10, one, on_this_machine, Way(BASE), over_a_link, options.incremental)
            for one in options.models
        ),
        (options.text, "gpt", text, Way(BASE, ("sums=float32",)), text, options.text_incremental),
    ]
    for data, model, synchronous, base, other, settings in parts:
        for seed in options.seeds if data is not None else ():
            for train, way in ((other, Way("incremental", tuple(settings))), (synchronous, base)):
                found.append(train(model, way, seed, options))
                sys.stderr.write(f"{json.dumps(asdict(found[-1]))}\n")
    environment = describe(Path(sys.executable), ["torch", "shoal"])
    caption = (
        f"{WORKERS} workers with one thread each; images for {options.epochs} epochs (link {options.rate}), text "
        f"for {options.text_epochs} (incremental: {options.text_incremental_epochs or options.text_epochs}); "
        f"torch {environment['versions']['torch']}. Goals: at most {GOAL_POINTS:g} point of "
        f"accuracy less; {GOAL_TIMES} times fewer bytes at the same loss (at most {GOAL_LOSS:.0%} more)."
    )
    sys.stdout.write(f"{table(found)}\n\n{caption}\n")
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items()}
        whole = {"environment": environment, "settings": settings, "runs": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
