"""The rows of all runs divided into shards, before any shard is written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.data.partition.cuts import Cut, Placed, Side, cut_at, cut_between_values, in_order
from shoal.data.partition.deal import blocks
from shoal.data.partition.plan import Border, HeavyKey, Plan, border_of, shards_of_value, skew_of
from shoal.data.partition.sample import Merged
from shoal.data.preparing.layout import rows_of, sample_of
from shoal.data.preparing.request import TOLERANCE, Request
from shoal.data.preparing.shuffle import Piece, pieces
from shoal.data.preparing.spill import Slice, read_schema
from shoal.data.preparing.stages import Runs, Stages
from shoal.data.preparing.step import column

_SLACK = 0.25  # of the tolerance: how far from its place a cut may be, to leave a key whole
_HEAVY_SHOWN = 20


@dataclass(frozen=True)
class Division:
    """The pieces of each shard, and the plan for the manifest."""

    shards: tuple[tuple[Piece, ...], ...]
    plan: Plan

    def rows(self) -> list[int]:
        return [sum(part.rows for piece in shard for part, _ in piece) for shard in self.shards]


def divide(request: Request, runs: Runs, stages: Stages) -> Division:
    """Divide `runs` as was asked for. Finding places in lines is a stage of its own."""
    if not runs.results:
        return _divided(request, [[] for _ in range(request.shards)])
    if request.partition.is_line:
        return _cut(request, runs, stages)
    if request.partition.kind == "file":
        return _divided(request, _in_blocks(request, runs))
    return _divided(request, _dealt(request, runs))


def _divided(request: Request, shards: Sequence[Sequence[Piece]], **more: Any) -> Division:
    partition = request.partition
    plan = Plan(by=partition.kind, column=partition.column, shards=request.shards, keep_keys=request.keep_keys, **more)
    division = Division(tuple(tuple(shard) for shard in shards), plan)
    return Division(division.shards, plan.model_copy(update={"skew": skew_of(division.rows())}))


# ---- key and range


def _cut(request: Request, runs: Runs, stages: Stages) -> Division:
    merged, rows = Merged.of([sample_of(result) for result in runs.results]), runs.rows
    mean = rows / request.shards
    if request.keep_keys:
        borders = cut_between_values(merged, request.shards)
    else:
        borders = cut_at(merged, [mean * shard for shard in range(1, request.shards)], TOLERANCE * _SLACK * mean)
    finer = cut_at(merged, runs.piece_targets(0, rows, request.sizes.piece_bytes), 0)
    heavy = _heavy(merged, TOLERANCE * mean)
    placed = stages.placed("locate", runs, [*borders, *finer, *heavy])
    shards = in_order(placed[: len(borders)])
    inner = in_order(placed[len(borders) : len(borders) + len(finer)])
    noted = tuple(border_of(border) for border in shards)
    return _divided(
        request,
        _between(runs, shards, inner),
        borders=noted,
        heavy=_named(runs, placed[len(borders) + len(finer) :], noted),
        plain_rows=tuple(np.sum([result["plain"] for result in runs.results], axis=0).tolist()),
    )


def _between(runs: Runs, shards: Sequence[Placed], inner: Sequence[Placed]) -> list[list[Piece]]:
    """The pieces of each shard: between its borders, and cut by `inner` where that lies."""
    _, numbers = runs.schemas
    spills = runs.spills
    found = []
    ranks = [0, *(border.rank for border in shards), runs.rows]
    for shard, (first, last) in enumerate(itertools.pairwise(ranks)):
        left, right = list(shards[max(0, shard - 1) : shard]), list(shards[shard : shard + 1])
        middle = [cut for cut in inner if first < cut.rank < last]
        whole = pieces(spills, numbers, [*left, *middle, *right])
        found.append([piece for piece in whole[len(left) : len(whole) - len(right)] if piece])
    return found


def _heavy(merged: Merged, rows: float) -> list[Cut]:
    """The values that have more than `rows` rows by the sketch, the heaviest first."""
    counts = merged.through - merged.before
    heaviest = np.argsort(-counts, kind="stable")[:_HEAVY_SHOWN]
    return [Cut(merged.values[number], Side.BEFORE) for number in heaviest.tolist() if counts[number] > max(1.0, rows)]


def _named(runs: Runs, heavy: Sequence[Placed], borders: Sequence[Border]) -> tuple[HeavyKey, ...]:
    found = []
    for one in heavy:
        number = next(number for number, result in enumerate(runs.results) if one.cut.value in result["sample"][0])
        result, spill = runs.results[number], runs.spills[number]
        start = result["sample"][1][result["sample"][0].index(one.cut.value)]
        row = spill.slice(start, start + 1).read(read_schema(spill.schema))
        key = column(row, result["key"], "the key")[0].as_py()
        shown = key if isinstance(key, int | float | str | bool | None) else str(key)
        found.append(HeavyKey(key=shown, rows=one.value_rows, shards=shards_of_value(borders, one.cut.value)))
    return tuple(sorted(found, key=lambda key: -key.rows))


# ---- the others: stretches of runs that lie one after the other


def _in_blocks(request: Request, runs: Runs) -> list[list[Piece]]:
    """Equal bytes in the order of the source."""
    rows = [rows_of(result) for result in runs.results]
    cuts = [0, *blocks(rows, [result["nbytes"] for result in runs.results], request.shards), sum(rows)]
    starts = np.append(0, np.cumsum(rows)).tolist()
    shards = []
    for first, last in itertools.pairwise(cuts):
        stretches = [
            (number, max(first, start) - start, min(last, stop) - start)
            for number, (start, stop) in enumerate(itertools.pairwise(starts))
            if min(last, stop) > max(first, start)
        ]
        shards.append(_in_pieces(runs, stretches, request.sizes.piece_bytes))
    return shards


def _dealt(request: Request, runs: Runs) -> list[list[Piece]]:
    """The rows that each run has for each shard. In `round-robin`, runs were dealt from 0: each is turned so that it
    begins where the one before it ended."""
    stretches: list[list[tuple[int, int, int]]] = [[] for _ in range(request.shards)]
    first = 0
    for number, result in enumerate(runs.results):
        start = 0
        for place, count in enumerate(result["counts"]):
            shard = (first + place) % request.shards if request.partition.kind == "round-robin" else place
            if count:
                stretches[shard].append((number, start, start + count))
            start += count
        first += start
    return [_in_pieces(runs, shard, request.sizes.piece_bytes) for shard in stretches]


def _in_pieces(runs: Runs, stretches: Sequence[tuple[int, int, int]], piece_bytes: int) -> list[Piece]:
    """Stretches (run, start, stop) in order, as many together as are read at once."""
    _, numbers = runs.schemas
    spills = runs.spills
    found: list[list[tuple[Slice, int]]] = []
    nbytes = 0.0
    for number, start, stop in stretches:
        size = runs.results[number]["nbytes"] * (stop - start) / max(1, rows_of(runs.results[number]))
        if not found or nbytes + size > piece_bytes:
            found.append([])
            nbytes = 0.0
        found[-1].append((spills[number].slice(start, stop), numbers[number]))
        nbytes += size
    return [tuple(piece) for piece in found]
