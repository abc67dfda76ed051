"""The engine `ray` keeps the contract on a real cluster of two nodes, reading and writing real HDFS."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shoal.data.preparing.engine import Engine
from shoal.data.preparing.on_ray import RayEngine
from shoal.testing.engine_contract import EngineContract

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
        made = Cluster(initialize_head=True, head_node_args=node)
        made.add_node(num_cpus=1, object_store_memory=80 << 20)
        yield made.address
        made.shutdown()


@pytest.fixture(scope="module")
def on_cluster(cluster: str) -> Iterator[Engine]:
    heeded = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with RayEngine(cluster) as engine:
        yield engine
    for number, handler in heeded.items():
        signal.signal(number, handler)


class TestRay(EngineContract):
    @pytest.fixture
    def engine(self, on_cluster: Engine) -> Engine:
        return on_cluster

    @pytest.fixture
    def made_by(self, cluster: str) -> tuple[str, str]:
        return "from shoal.data.preparing.on_ray import RayEngine", f"RayEngine({cluster!r})"

    @pytest.fixture
    def place(self, hdfs: str) -> str:
        return hdfs

    def test_both_nodes_work(self, engine: Engine) -> None:
        import ray

        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        assert engine.slots == 2
        assert not engine.spans_machines  # two nodes, one machine


def test_an_address_where_no_cluster_is_is_one_message() -> None:
    words = "from shoal.data.preparing.on_ray import RayEngine\nRayEngine('127.0.0.1:1')"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=120, check=False)
    assert "no Ray cluster can be used at 127.0.0.1:1: [Errno 111] Connection refused. " in done.stderr
    assert "Check --engine-option address" in done.stderr
