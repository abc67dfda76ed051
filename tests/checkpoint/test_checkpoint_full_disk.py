"""A disk that is really full."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_cases import assert_belongs_together, cursor_at, names_in, state_at

from shoal.checkpoint.catalog import Catalog, name_of
from shoal.checkpoint.writer import Writer

pytestmark = pytest.mark.unit


def test_a_full_disk_is_told_and_keeps_what_was_there(make_disk: Callable[[str], Path]) -> None:
    directory = make_disk("1m") / "checkpoints"
    writer = Writer(directory)
    writer.save(name_of(1), [state_at(1, elements=1000)], cursor_at(1), {"step": 1})
    writer.flush(60)
    assert len(writer.poll()) == 1
    writer.save(name_of(2), [state_at(2, elements=200_000)], cursor_at(2), {"step": 2})
    writer.flush(60)
    with pytest.raises(OSError, match="No space left") as caught:
        writer.poll()
    assert caught.value.errno == errno.ENOSPC
    assert names_in(directory) == [name_of(1)]
    newest = Catalog(directory).newest_valid(pytest.fail)
    assert newest is not None
    assert_belongs_together(newest)
    # the space of the failed one is free again
    writer.save(name_of(3), [state_at(3, elements=50_000)], cursor_at(3), {"step": 3})
    writer.close()
    assert [saved.cursor.step for saved in writer.poll()] == [3]
    assert names_in(directory) == [name_of(1), name_of(3)]
