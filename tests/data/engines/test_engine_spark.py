"""The engine `spark` keeps the contract on real Spark, reading and writing real HDFS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.data.preparing.engine import Engine
from shoal.data.preparing.on_spark import SparkEngine
from shoal.testing.engine_contract import EngineContract
from shoal.testing.services import ServiceUnavailable
from shoal.testing.services.running import java

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # for a short life

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def on_spark() -> Iterator[Engine]:
    try:
        java()
    except ServiceUnavailable as reason:
        pytest.skip(f"no Spark can be had here: {reason}")
    with SparkEngine("local[2]", settings=QUICK) as engine:
        yield engine


class TestSpark(EngineContract):
    @pytest.fixture
    def engine(self, on_spark: Engine) -> Engine:
        return on_spark

    @pytest.fixture
    def made_by(self) -> tuple[str, str]:
        return "from shoal.data.preparing.on_spark import SparkEngine", f"SparkEngine('local[2]', settings={QUICK!r})"

    @pytest.fixture
    def place(self, hdfs: str) -> str:
        return hdfs
