"""k-means over several processes that share a few arrays: a use of `shoal.KVStore` without any deep learning.

    shoal kvstore --servers 2                                  # in one terminal
    python examples/kvstore_kmeans.py kvstore --workers 3      # in another

Every process has its own part of the points. In a round each adds, for every cluster, the sum and the number of its
nearest points to an array on the servers; when all have done so, each reads the totals and moves the centres. The
consistency "bsp" makes them wait for each other, so that the result does not depend on the number of processes.

Without a directory the script starts servers of its own. It needs NumPy only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import shoal

Array = np.ndarray[Any, Any]


def points_of(worker: int, options: argparse.Namespace) -> Array:
    """This worker's part of the points: blobs around as many places as there are clusters."""
    draw = np.random.default_rng(options.seed)
    places = draw.uniform(-10, 10, (options.clusters, options.dimensions))
    blob = draw.integers(options.clusters, size=options.points)
    points = places[blob] + draw.normal(size=(options.points, options.dimensions))
    return points[worker :: options.workers]


def nearest(points: Array, centres: Array) -> tuple[Array, float]:
    """The cluster of each point, and the sum of squared distances to it."""
    squares = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
    clusters = squares.argmin(1)
    return clusters, float(squares[np.arange(len(points)), clusters].sum())


def contribution(points: Array, centres: Array) -> Array:
    """For each cluster: the sum of its points, their number and the sum of their squared distances (in all)."""
    clusters, distance = nearest(points, centres)
    sums = np.zeros((len(centres), points.shape[1] + 2))
    np.add.at(sums[:, :-2], clusters, points)
    sums[:, -2] = np.bincount(clusters, minlength=len(centres))
    sums[0, -1] = distance
    return sums


def work(worker: int, fleet: str, options: argparse.Namespace) -> None:
    """One process: its points, and its share of every round."""
    points = points_of(worker, options)
    shape = (options.clusters, options.dimensions + 2)
    with shoal.KVStore(fleet, worker=worker, workers=options.workers, consistency="bsp") as store:
        # two arrays take turns: while a slow worker still reads one, a fast one may already add to the other
        turns = ("sums, even rounds", "sums, odd rounds")
        for key in turns:
            store.declare(key, shape, "float64", updater="add")
        before = {key: store.get(key) for key in turns}  # what an earlier run has left there
        store.tick()
        store.pull(turns[0])  # nobody adds before all have looked
        centres = points_of(0, argparse.Namespace(**{**vars(options), "workers": 1}))[: options.clusters].copy()
        for number in range(options.rounds):
            key = turns[number % 2]
            store.push(key, contribution(points, centres))
            store.tick()  # my round is done ...
            totals = store.pull(key)  # ... and this waits until everybody's is
            totals, before[key] = totals - before[key], totals
            counts = totals[:, -2:-1]
            centres = np.where(counts > 0, totals[:, :-2] / np.maximum(counts, 1), centres)
            if worker == 0:
                said = {"round": number, "mean_squared_distance": totals[0, -1] / options.points}
                print(json.dumps(said) if options.json else f"round {number:2}: {said['mean_squared_distance']:.6f}")


@contextmanager
def servers(directory: str | None) -> Iterator[str]:
    """The directory of the servers: the given one, or that of two servers of our own."""
    if directory is not None:
        yield directory
        return
    from shoal.store.fleet import Fleet
    from shoal.store.terms import FleetTerms

    with tempfile.TemporaryDirectory(prefix="kmeans-") as own, Fleet(own, FleetTerms(servers=2)) as fleet:
        fleet.wait_ready()
        yield own


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("directory", nargs="?", help="of `shoal kvstore`; without one, servers are started")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--dimensions", type=int, default=8)
    parser.add_argument("--clusters", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print a line of JSON a round")
    options = parser.parse_args()
    with servers(options.directory) as fleet:
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(number, fleet, options)) for number in range(options.workers)]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
        if any(process.exitcode for process in workers):
            raise SystemExit("a worker failed")


if __name__ == "__main__":
    main()
