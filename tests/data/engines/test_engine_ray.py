"""The engine `ray` keeps the contract on a real cluster of two nodes, reading and writing real HDFS."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.data.preparing.engine import Engine
from shoal.data.preparing.on_ray import RayEngine
from shoal.testing.engine_contract import EngineContract

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as home:  # short, for its sockets
            # `Cluster` writes its address into Ray's own folder, not into the one of its nodes, and makes neither
            patch.setenv("RAY_TMPDIR", home)
            folder = str(Path(home, "ray"))
            Path(folder).mkdir()
            from ray.cluster_utils import Cluster

            node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20, "temp_dir": folder}
            made = Cluster(initialize_head=True, head_node_args=node)
            made.add_node(num_cpus=1, object_store_memory=80 << 20, temp_dir=folder)
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
