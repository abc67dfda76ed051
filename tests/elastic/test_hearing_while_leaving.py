"""The link's thread hears that a view is broken just when the main thread leaves that view."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from elastic_process import control_page

from shoal.core.world import Member, View
from shoal.elastic.linked import Identity, LinkedAttendance
from shoal.elastic.status import WorkerWord

pytestmark = pytest.mark.unit


class Leaving(LinkedAttendance):
    """Takes its hook away as soon as it was looked at once."""

    _hooks: Iterator[Callable[[], None] | None] = iter(())

    @property
    def on_broken(self) -> Callable[[], None] | None:  # type: ignore[override]  # only looked at here
        return next(self._hooks)


@pytest.mark.parametrize("word", [{"broken": 1}, {"out": "gave no sign of life for 2 s"}])
def test_the_hook_may_go_at_any_moment(word: dict[str, Any]) -> None:
    called: list[bool] = []
    link: Any = SimpleNamespace(say=lambda status: None, word=None)
    with control_page() as control:
        attendance = Leaving(link, Identity("w0", "x", "here", 0), control, 60.0)
        attendance._say("in", view=1)
        attendance._hooks = iter([lambda: called.append(True), None])
        view = View(1, (Member("worker", 0, "here", 1, "w0", "x", 0),))
        link.on_word(WorkerWord(view, **word))  # an error here would end the link's thread, and the worker's part
        assert control.broken(1)
    assert called == [True]
