"""What runs tasks: here, or on many machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

from shoal.core.errors import ShoalError
from shoal.core.registry import Registry
from shoal.data.preparing.task import Result, Task

ATTEMPTS = 4  # at a task, before the job is given up
Say = Callable[[str], None]


class TaskFailed(ShoalError):  # noqa: N818 - it names the event
    """A task failed each time that it was tried. The message says what it worked on, and the last cause."""

    def __init__(self, task: Task, attempts: int, cause: str) -> None:
        super().__init__(f"{task.about} failed {attempts} times; the last time: {cause}")


class NothingEnds(ShoalError):  # noqa: N818
    """No task has ended for so long that none is believed to end any more."""

    def __init__(self, tasks: Iterable[Task], silence_s: float) -> None:
        names = sorted(task.about for task in tasks)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        super().__init__(
            f"nothing was heard for {silence_s:g} s of {shown}: see what they wait for (a place that does not answer, "
            "a function of the job, a cluster without free cores). The same command goes on where this one was"
        )


class Engine(ABC):
    """Runs `shoal.data.preparing.task.perform` on tasks. Used by one thread; ready when its constructor returns.

    A task that fails (whatever it raises but a `UserError`, or its process is killed) is tried again, `ATTEMPTS` times
    in all; then `TaskFailed` is raised, and `NothingEnds` if no task ends for `silence_s`. A `UserError` is raised at
    once, as it is. Who made it is told of what is tried again.
    """

    name: ClassVar[str]
    silence_s: float = 3600.0  # after which `NothingEnds` is raised
    shares_disk: ClassVar[bool] = False  # whether all its processes see the local files of this one

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yield (number of the task, its result) as they are done, in any order. Closing it early ends what runs."""

    @property
    def slots(self) -> int:
        """How many tasks it runs at a time."""
        return 1

    @property
    def spans_machines(self) -> bool:
        """Whether it runs tasks where a path of this machine may mean something else."""
        return False

    def close(self) -> None:  # noqa: B027 - not all have processes
        """End its processes. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# memory in bytes for all of it on one machine, and processes (None: as many as are good); who is told; its own options
MakeEngine = Callable[[int | None, int | None, Say, Mapping[str, str]], Engine]
engines: Registry[MakeEngine] = Registry("engine")


class InProcess(Engine):
    """One task after the other in this process, without trying again: for tests and small data."""

    name = "here"
    shares_disk = True

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        from shoal.data.preparing.task import perform

        for number, task in enumerate(tasks):
            yield number, perform(task)
