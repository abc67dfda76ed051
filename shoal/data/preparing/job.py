"""A job of the user's: plain functions on Arrow record batches, in a file or in a program."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shoal.core.errors import ConfigError, UserError
from shoal.data.preparing.step import At, Groups, Step

FUNCTIONS = ("map", "key", "combine", "reduce")


@dataclass(frozen=True)
class Job:
    """Functions on `pyarrow.RecordBatch`es, each optional.

    ``map(batch)`` returns a batch, several, or None for nothing. ``key(batch)`` returns the name of a column, or an
    array with a value for each row. ``reduce(key, rows)`` is given all rows of a key as a `pyarrow.Table` and
    returns rows: a table, a batch, a dict of lists or a list of dicts. ``combine(key, rows)`` is the same for some of
    the rows of a key, with the same columns as it was given; it may be called any number of times.
    """

    map: Callable[[Any], Any] | None = None
    key: Callable[[Any], Any] | str | None = None
    combine: Callable[[Any, Any], Any] | None = None
    reduce: Callable[[Any, Any], Any] | None = None
    name: str = "job"

    def __post_init__(self) -> None:
        if (self.reduce or self.combine) and self.key is None:
            raise ConfigError(f"{self.name} has reduce or combine and no key: say by what rows belong together")
        if self.combine and not self.reduce:
            raise ConfigError(f"{self.name} has combine and no reduce: combining is the first half of reducing")
        if not any((self.map, self.key, self.reduce)):
            raise ConfigError(f"{self.name} has none of the functions {', '.join(FUNCTIONS)}: give at least one")


class JobStep(Step):
    """The functions of a `Job`, made anew in every process from the text of its file or from its pickle."""

    def __init__(self, name: str, text: str | None, pickled: bytes | None) -> None:
        self.name, self._text, self._pickled = name, text, pickled
        job = self._job
        self.maps, self.keys = job.map is not None, job.key is not None
        self.combines, self.reduces = job.combine is not None, job.reduce is not None

    @classmethod
    def of_file(cls, path: str, text: str) -> JobStep:
        return cls(path, text, None)

    @classmethod
    def of(cls, job: Job) -> JobStep:
        import cloudpickle

        return cls(job.name, None, cloudpickle.dumps(job))

    @cached_property
    def _job(self) -> Job:
        if self._text is not None:
            return _run_file(self.name, self._text)
        import cloudpickle

        job: Job = cloudpickle.loads(self._pickled)
        return job

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_job"}

    def describe(self) -> dict[str, Any]:
        content = self._text.encode() if self._text is not None else (self._pickled or b"") + _sources(self._job)
        return {"name": self.name, "sha256": hashlib.sha256(content).hexdigest()}

    def map(self, batch: Any, at: At, learned: Any) -> Iterable[Any]:
        return batches_from(self._job.map(batch), self.name, "map") if self._job.map else (batch,)

    def key(self, batch: Any) -> Any:
        assert self._job.key is not None
        return self._job.key if isinstance(self._job.key, str) else self._job.key(batch)

    def combine(self, groups: Groups) -> tuple[Any, Any]:
        assert self._job.combine is not None
        return self._called(self._job.combine, groups, "combine")

    def reduce(self, groups: Groups) -> tuple[Any, Any]:
        assert self._job.reduce is not None
        return self._called(self._job.reduce, groups, "reduce")

    def _called(self, function: Callable[[Any, Any], Any], groups: Groups, what: str) -> tuple[Any, Any]:
        """One call a key; answers with the table and, for each of its rows, the number of its group."""
        import numpy as np
        import pyarrow as pa

        made, rows_of = [], []
        stops = [*groups.starts[1:].tolist(), groups.table.num_rows]
        for start, stop in zip(groups.starts.tolist(), stops, strict=True):
            key = groups.keys[start].as_py()
            try:
                answer = function(key, groups.table.slice(start, stop - start))
                tables = [pa.Table.from_batches([batch]) for batch in batches_from(answer, self.name, what)]
            except UserError:
                raise
            except Exception as error:
                raise JobError(self.name, f"{what}({key!r}, …) of {stop - start} rows", error) from error
            rows_of.append(sum(table.num_rows for table in tables))
            made.extend(tables)
        table = join(made, f"{what} of {self.name}") if made else groups.table.slice(0, 0)
        return table, np.repeat(np.arange(len(groups)), rows_of)


def _sources(job: Job) -> bytes:
    """The text of the functions, as far as it is known: those of a module are pickled by name alone."""
    texts = []
    for name in FUNCTIONS:
        with contextlib.suppress(OSError, TypeError):
            texts.append(inspect.getsource(getattr(job, name)))
    return "".join(texts).encode()


class JobError(UserError):
    """A function of the user's raised. Names the function, what it was given, the error and its line."""

    def __init__(self, job: str, what: str, error: Exception) -> None:
        super().__init__(f"{job}: {what} raised {describe_error(error)}")


def describe_error(error: Exception) -> str:
    """Its kind, its words, and the last line of the user's code that it passed."""
    line, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/shoal/data/" not in file and "site-packages" not in file:
            line = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{line}"


def join(tables: list[Any], what: str) -> Any:
    """One table of several, which must have the same columns; a column that has only nulls somewhere fits any type."""
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise UserError(f"{what} returned rows of different columns or types: {error}") from None


def batches_from(answer: Any, job: str, what: str) -> Iterator[Any]:
    """The record batches that a function of the user's meant, without the empty ones."""
    import pyarrow as pa

    if answer is None:
        return
    if isinstance(answer, pa.RecordBatch):
        if answer.num_rows:
            yield answer
    elif isinstance(answer, pa.Table):
        yield from (batch for batch in answer.combine_chunks().to_batches() if batch.num_rows)
    elif isinstance(answer, dict):
        yield from batches_from(pa.table(answer), job, what)
    elif isinstance(answer, list) and answer and all(isinstance(one, dict) for one in answer):
        yield pa.RecordBatch.from_pylist(answer)
    elif isinstance(answer, Iterable) and not isinstance(answer, str | bytes):
        for one in answer:
            yield from batches_from(one, job, what)
    else:
        raise ConfigError(
            f"{what} of {job} returned {type(answer).__name__}: return a pyarrow RecordBatch or Table, several of "
            "them, or None"
        )


def _run_file(path: str, text: str) -> Job:
    space: dict[str, Any] = {"__name__": "shoal_job", "__file__": path}
    try:
        exec(compile(text, path, "exec"), space)  # noqa: S102 - the user's own job
    except Exception as error:
        raise JobError(path, "the file", error) from None
    if isinstance(space.get("job"), Job):
        job: Job = space["job"]
        return job
    return Job(**{name: space[name] for name in FUNCTIONS if callable(space.get(name))}, name=path)
