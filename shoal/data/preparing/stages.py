"""The stages of a job, one after the other: each is a list of tasks that an engine runs."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shoal.data.formats.base import Split
from shoal.data.partition.cuts import Cut, Placed, cut_at, cut_between_values, in_order, place
from shoal.data.partition.sample import Merged
from shoal.data.places import Place
from shoal.data.preparing.engine import Engine
from shoal.data.preparing.layout import Keyed, Layout, rows_of, sample_of, spill_of
from shoal.data.preparing.map_task import MapTask, MeasureTask
from shoal.data.preparing.progress import Progress
from shoal.data.preparing.request import Request
from shoal.data.preparing.shuffle import LocateTask, RegroupTask, pieces
from shoal.data.preparing.spill import Spill
from shoal.data.preparing.task import Result, Task, receipt_of
from shoal.data.preparing.work import names_in

_LINES_A_TASK = 16
_FEWEST_PIECES = 16  # of what is worth it: reducing may be slow, and there are cores
_FEW_ROWS = 10_000


@dataclass(frozen=True)
class Runs:
    """Spilled runs of rows, with what is known of each."""

    work: Place
    results: tuple[Result, ...]

    @property
    def rows(self) -> int:
        return sum(map(rows_of, self.results))

    @property
    def nbytes(self) -> int:
        return sum(result["nbytes"] for result in self.results)

    @cached_property
    def spills(self) -> list[Spill]:
        return [spill_of(self.work, result) for result in self.results]

    @cached_property
    def schemas(self) -> tuple[list[bytes], list[int]]:
        """The schemas that differ, and the number of that of each spill."""
        known: dict[bytes, int] = {}
        numbers = [known.setdefault(spill.schema, len(known)) for spill in self.spills]
        return list(known), numbers

    def piece_targets(self, first: int, last: int, piece_bytes: int) -> list[float]:
        """Ranks between `first` and `last` that cut what lies there into pieces of about `piece_bytes`."""
        nbytes = self.nbytes * (last - first) / max(1, self.rows)
        count = max(1, -(-int(nbytes) // piece_bytes))
        return [first + (last - first) * number / count for number in range(1, count)]


class Stages:
    """Runs stages on an engine. Tasks that are done already are not handed to it."""

    def __init__(self, request: Request, engine: Engine, work: Place, progress: Progress) -> None:
        self._request, self._engine, self._work, self._progress = request, engine, work, progress

    def run(self, name: str, tasks: Sequence[Task], sizes: Sequence[int]) -> list[Result]:
        """The results of all `tasks`, which have these bytes to do."""
        self._progress.stage(name, len(tasks), sum(sizes))
        there = set(names_in(self._work))  # asked once: a place may be far away
        results: list[Result | None] = [receipt_of(task) if task.receipt.name in there else None for task in tasks]
        for number, done in enumerate(results):
            if done is not None:
                self._progress.advance(1, done.get("rows", 0), sizes[number], done_before=True)
        todo = [number for number, done in enumerate(results) if done is None]
        answers = self._engine.run([tasks[number] for number in todo])
        try:
            for place_in_todo, result in answers:
                number = todo[place_in_todo]
                results[number] = result
                self._progress.advance(1, result.get("rows", 0), sizes[number])
        finally:
            if isinstance(answers, Generator):
                answers.close()  # what still runs is not wanted
        return [result for result in results if result is not None]

    # ---- reading the source

    def learn(self, work: Sequence[tuple[Split, ...]], schema: bytes) -> list[Any]:
        """What the steps that measure have learned, in the order of the steps."""
        learned: list[Any] = []
        steps = self._request.chain.steps
        for number, step in enumerate(steps):
            if not step.measures:
                learned.append(None)
                continue
            tasks = [
                MeasureTask(
                    f"measure-{number}-{task:05}",
                    self._work,
                    task,
                    splits,
                    schema,
                    steps[:number],
                    tuple(learned),
                    self._request.bad_records,
                    step,
                )
                for task, splits in enumerate(work)
            ]
            results = self.run(f"measure {step.name}", tasks, [task.nbytes for task in tasks])
            learned.append(step.merge(result["measured"] for result in results if result["measured"] is not None))
        return learned

    def map(
        self, work: Sequence[tuple[Split, ...]], schema: bytes, learned: Sequence[Any], layout: Layout
    ) -> list[Result]:
        chain = self._request.chain
        reducer = chain.reducer
        tasks = [
            MapTask(
                f"map-{task:05}",
                self._work,
                task,
                splits,
                schema,
                chain.before,
                tuple(learned[: len(chain.before)]),
                self._request.bad_records,
                layout,
                reducer if reducer is not None and reducer.combines else None,
                self._request.sizes.run_bytes,
            )
            for task, splits in enumerate(work)
        ]
        return self.run("map", tasks, [task.nbytes for task in tasks])

    # ---- cutting the line

    def placed(self, name: str, runs: Runs, cuts: Sequence[Cut]) -> list[Placed]:
        """Where `cuts` are in each run."""
        values = list({repr(cut.value): cut.value for cut in cuts}.values())
        lines = [Spill.from_plain(self._work, result["lines"]) for result in runs.results]
        tasks = [
            LocateTask(f"{name}-{start // _LINES_A_TASK:05}", self._work, tuple(group), tuple(values))
            for start in range(0, len(lines), _LINES_A_TASK)
            if (group := lines[start : start + _LINES_A_TASK])
        ]
        sizes = [sum(line.nbytes for line in task.lines) for task in tasks]
        spans = [run for result in self.run(name, tasks, sizes) for run in result["spans"]] if values else []
        number = {repr(value): place for place, value in enumerate(values)}
        return [place(cut, [tuple(run[number[repr(cut.value)]]) for run in spans]) for cut in cuts]

    # ---- shuffling

    def regroup(self, name: str, runs: Runs, layout: Layout | None, learned: Sequence[Any], *, reduce: bool) -> Runs:
        """Pieces of the sorted line, reduced by key or dealt out, as new runs."""
        request, chain = self._request, self._request.chain
        merged = Merged.of([sample_of(result) for result in runs.results])
        fewest = _FEWEST_PIECES if runs.rows > _FEW_ROWS else 1
        count = max(fewest, -(-runs.nbytes // request.sizes.piece_bytes))
        if reduce:
            cuts = cut_between_values(merged, count)
        else:
            cuts = cut_at(merged, [runs.rows * part / count for part in range(1, count)], 0)
        placed = in_order(self.placed(f"locate-{name}", runs, cuts))
        schemas, numbers = runs.schemas
        ranks = [0, *(cut.rank for cut in placed)]
        reducer = chain.reducer if reduce else None
        found = pieces(runs.spills, numbers, placed)
        tasks = [
            RegroupTask(
                f"{name}-{number:05}",
                self._work,
                piece,
                tuple(schemas),
                runs.results[0]["key"],
                reducer,
                chain.after if reduce else (),
                tuple(learned[len(chain.before) :]) if reduce else (),
                reduce and request.partition.is_sorted and request.partition.column is None,
                layout,
                ranks[number],
                request.shards,
                number,
            )
            for number, piece in enumerate(found)
            if piece
        ]
        sizes = [sum(part.stop - part.start for part, _ in task.piece) for task in tasks]
        results = self.run(name, tasks, sizes)
        return Runs(self._work, tuple(run for result in results for run in result["runs"]))


def layout_for(request: Request) -> Layout:
    """How runs are laid out before they are divided into shards."""
    partition = request.partition
    if partition.is_sorted:
        return Layout(request.shards, Keyed.for_partition(partition, request.chain.keyed))
    return Layout(request.shards, None, deals=partition.kind == "round-robin")


def tasks_of(splits: Iterable[Split], block_bytes: int) -> list[tuple[Split, ...]]:
    """Splits in order, small ones together."""
    found: list[list[Split]] = []
    nbytes = 0
    for split in splits:
        if not found or nbytes + split.nbytes > block_bytes or len(found[-1]) >= 4096:
            found.append([])
            nbytes = 0
        found[-1].append(split)
        nbytes += split.nbytes
    return [tuple(group) for group in found]
