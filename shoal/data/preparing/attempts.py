"""Trying again, for engines whose tasks answer from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shoal.core.errors import UserError
from shoal.data.preparing.engine import ATTEMPTS, Say, TaskFailed
from shoal.data.preparing.task import Result, Task


class Attempts:
    """Judges answers, as `shoal.data.preparing.worker.answer` gives them, by how often each task has failed."""

    def __init__(self, tasks: Sequence[Task], say: Say) -> None:
        self._tasks, self._say, self._failed = tasks, say, Counter[int]()

    def judge(self, number: int, answer: dict[str, Any]) -> Result | None:
        """The result of the task, or None: try it again. Raises `UserError` and `TaskFailed`."""
        if "result" in answer:
            result: Result = answer["result"]
            return result
        if "refused" in answer:
            raise UserError(answer["refused"])
        self._failed[number] += 1
        failed, task = self._failed[number], self._tasks[number]
        if failed >= ATTEMPTS:
            raise TaskFailed(task, failed, f"{answer['failed']}\n{answer.get('trace', '')}".rstrip())
        self._say(f"{task.about}: {answer['failed']}; trying again ({failed + 1} of {ATTEMPTS})")
        return None
