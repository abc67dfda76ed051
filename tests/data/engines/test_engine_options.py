"""Engines by name, with options of their own; a path that only this machine has is refused to many machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.data.places import Place
from shoal.data.preparing.engine import Engine
from shoal.data.preparing.engines import open_engine, refuse_local_paths
from shoal.data.preparing.prepare import prepare
from shoal.data.preparing.task import Result, Task

pytestmark = pytest.mark.unit


class Elsewhere(Engine):
    """On other machines."""

    name = "elsewhere"
    closed = False

    @property
    def spans_machines(self) -> bool:
        return True

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        raise AssertionError("nothing is run")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("engine", "options", "words"),
    [
        ("local", {"address": "auto"}, "--engine-option address=auto: the engine local has no options"),
        ("ray", {"master": "x"}, "--engine-option master=x: the engine ray has the options address, paths"),
        ("spark", {"address": "x"}, "--engine-option address=x: the engine spark has the options master, paths, spark"),
        ("ray", {"paths": "all"}, "--engine-option paths=all: give own or shared"),
        ("sparc", {}, "unknown engine 'sparc': did you mean 'spark'"),
    ],
)
def test_an_option_that_an_engine_has_not_is_told(engine: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as raised, open_engine(engine, None, None, print, options):
        pass
    assert words in str(raised.value)


def test_a_path_of_this_machine_is_refused_to_many(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("a\n1\n")
    with pytest.raises(
        ConfigError, match=r"is a path of this machine, and the engine elsewhere works on several: give"
    ):
        prepare(tmp_path / "raw.csv", "hdfs://127.0.0.1:1/set", engine=Elsewhere())
    refuse_local_paths(Elsewhere(), Place.of("hdfs://127.0.0.1:1/raw"), Place.of("s3://bucket/set"))


def test_an_engine_that_is_given_is_its_owners_to_close() -> None:
    mine = Elsewhere()
    with open_engine(mine, None, None, print, {}) as opened:
        assert opened is mine
    assert not mine.closed


@pytest.mark.parametrize(
    ("engine", "option"), [("ray", {"address": "127.0.0.1:1"}), ("spark", {"master": "spark://127.0.0.1:1"})]
)
def test_where_no_cluster_is_is_told_at_once(engine: str, option: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1: .*Connection refused\. Check --engine-option"):
        open_engine(engine, None, None, print, option).__enter__()
