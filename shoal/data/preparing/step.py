"""What is done to rows on their way: a step, and several of them in a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class At:
    """Where a batch comes from: the task that reads it, and the number of its first row there. The same for every run
    over the same files."""

    task: int
    row: int


class Step:
    """Stateless, and can be pickled. The functions that a step does not have are None or pass rows through.

    `learned` is what `merge` has made of what `measure` returned for all batches of the source, or None.
    """

    name: str = ""
    measures: ClassVar[bool] = False  # whether it looks at all rows in a pass of its own before any is mapped
    maps: bool = True
    keys: bool = False  # whether `key` says what rows belong together
    combines: bool = False
    reduces: bool = False

    def measure(self, batch: Any) -> Any:
        """What JSON can hold, of one batch."""
        raise NotImplementedError

    def merge(self, measured: Iterable[Any]) -> Any:
        """All of it as one; merging what was merged is allowed, in any order."""
        raise NotImplementedError

    def lesson(self, learned: Any) -> Any:
        """Of what was learned, what the manifest records."""
        return learned

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        """Record batches for a record batch, which has at least one row."""
        return (batch,)

    def key(self, batch: Any) -> Any:
        """The name of a column, or a `pyarrow.Array` with one value for each row."""
        raise NotImplementedError

    def combine(self, groups: Groups) -> tuple[Any, Any]:
        """Fewer rows that stand for them, of the same columns, as a table with the number of the group of each row in
        an array: called where rows of a key happen to be together."""
        raise NotImplementedError

    def reduce(self, groups: Groups) -> tuple[Any, Any]:
        """As `combine`, when all rows of these keys are there; other columns are allowed."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """For the manifest, and to tell one job from another."""
        return {"name": self.name}


@dataclass(frozen=True)
class Groups:
    """Rows of a table that are together by key: group i is ``[starts[i], starts[i + 1])``, the last goes to the end."""

    table: Any
    keys: Any
    starts: Any

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class Chain:
    """Steps in a row: any number that map, at most one that reduces among them."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        reducers = [step.name for step in self.steps if step.reduces]
        if len(reducers) > 1:
            raise ConfigError(
                f"{' and '.join(reducers)} both reduce by key: prepare with the first, then prepare the result with "
                "the second"
            )
        for step in self.after:
            if step.measures:
                raise ConfigError(
                    f"{step.name} comes after {reducers[0]} and would measure rows that are not reduced yet: put it "
                    f"before, or prepare with {reducers[0]} first and then prepare the result"
                )

    @property
    def reducer(self) -> Step | None:
        return next((step for step in self.steps if step.reduces), None)

    @property
    def before(self) -> tuple[Step, ...]:
        """Steps whose `map` comes before the shuffle: up to the one that reduces, and it."""
        return self.steps[: self._border]

    @property
    def after(self) -> tuple[Step, ...]:
        return self.steps[self._border :]

    @property
    def _border(self) -> int:
        return next((number + 1 for number, step in enumerate(self.steps) if step.reduces), len(self.steps))

    @property
    def keyed(self) -> Step | None:
        """The last step that has a key."""
        return next((step for step in reversed(self.steps) if step.keys), None)

    def describe(self) -> list[dict[str, Any]]:
        return [step.describe() for step in self.steps]


def column_of(step: Step, batch: Any, what: str = "key") -> tuple[str | None, Any]:
    """The key of a batch: the name of its column if it is one, and the values."""
    import pyarrow as pa

    if isinstance(batch, pa.Table):
        whole = batch.combine_chunks().to_batches()
        batch = whole[0] if whole else pa.RecordBatch.from_pylist([], schema=batch.schema)
    found = step.key(batch)
    if isinstance(found, str):
        return found, column(batch, found, f"{what} of {step.name}")
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if not isinstance(found, pa.Array):
        found = pa.array(found)
    if len(found) != batch.num_rows:
        raise ConfigError(f"the key of {step.name} has {len(found)} values for {batch.num_rows} rows: give one a row")
    return None, found


def column(batch: Any, name: str, why: str) -> Any:
    """A column of a batch or a table as one array; raises `ConfigError` that says for what it was wanted."""
    import pyarrow as pa

    if name not in batch.schema.names:
        from shoal.core.errors import nearest

        raise ConfigError(f"there is no column {name!r} for {why}: {nearest(name, batch.schema.names)}")
    found = batch.column(name)
    if isinstance(found, pa.ChunkedArray):
        return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
    return found


def columns(names: Sequence[str], schema: Any, why: str) -> tuple[str, ...]:
    """`names`, all of which must be there."""
    from shoal.core.errors import nearest

    for name in names:
        if name not in schema.names:
            raise ConfigError(f"there is no column {name!r} for {why}: {nearest(name, schema.names)}")
    return tuple(names)
