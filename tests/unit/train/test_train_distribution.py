"""Header and dry run say how a run is distributed: what `auto` became, teams, servers, consistency, codec."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.config import resolve
from shoal.core.world import Member, View
from shoal.strategies.select import choose_strategy, most_workers
from shoal.train.distribution import distribution, planned_view

pytestmark = pytest.mark.unit


def rows(view: View | None = None, **settings: Any) -> dict[str, str]:
    config = resolve(("Trainer(...)", {"global_batch": 4, "epochs": 1, **settings}))
    strategy = choose_strategy(config.strategy, most_workers(config), config.hybrid, config.server)
    return dict(distribution(config, strategy, view or planned_view(config.workers)))


def on_hosts(*workers: int) -> View:
    places = [host for host, count in enumerate(workers) for _ in range(count)]
    return View(1, tuple(Member("worker", n, f"h{h}", n + 1, f"{n}", f"a{h}", n) for n, h in enumerate(places)))


def test_what_auto_became() -> None:
    assert rows() == {"strategy": "single (auto: one worker)", "workers": "1 on 1 host"}
    assert rows(workers=3) == {"strategy": "allreduce (auto: more than one worker)", "workers": "3 on 1 host"}
    assert rows(elastic={"max_workers": 4})["strategy"] == "allreduce (auto: more may come)"
    assert rows(workers=2, strategy="incremental")["strategy"] == "incremental"


def test_servers_and_consistency() -> None:
    bsp = rows(workers=2, servers=2, strategy="parameter-server")
    assert (bsp["servers"], bsp["consistency"]) == ("2", "bsp")
    ssp = rows(strategy="parameter-server", server={"consistency": "ssp:4", "replicas": 2})
    assert (ssp["servers"], ssp["consistency"]) == ("1, two copies each", "ssp:4")
    assert rows(strategy="async")["consistency"] == "asp, old updates count less"
    assert rows(strategy="async", asynchronous={"damping": False})["consistency"] == "asp"
    assert "servers" not in rows(workers=2, servers=2)


def test_codec() -> None:
    assert rows(workers=2, comm={"codec": "int8"})["codec"] == "int8"
    assert rows(workers=2, comm={"codec": "auto"})["codec"] == "auto: measured in the first steps, then chosen"
    assert rows(comm={"codec": "int8"})["codec"] == "int8, unused: one worker sends nothing"
    assert rows(strategy="async", comm={"codec": "int8"})["codec"] == "int8"


def test_teams_and_a_hybrid_on_one_host() -> None:
    hybrid: dict[str, Any] = {"strategy": "hybrid", "workers": 4}
    alone = rows(**hybrid)
    assert alone["strategy"] == "hybrid: allreduce within a team, incremental between teams"
    assert alone["teams"] == (
        "1 (hybrid.team=host): all workers are on one host, so hybrid is its inner strategy here, allreduce, "
        "until there are more teams"
    )
    assert rows(**hybrid, hybrid={"team": 2})["teams"] == "2 of 2 workers (hybrid.team=2)"
    assert rows(on_hosts(3, 1), **hybrid)["teams"] == "1 of 3 workers, 1 of 1 worker (hybrid.team=host)"
    assert rows(on_hosts(3, 1), **hybrid)["workers"] == "4 on 2 hosts"
    served = rows(**hybrid, hybrid={"outer": "parameter-server"})
    assert "so its sums are all that the servers get" in served["teams"]
    assert (served["servers"], served["consistency"]) == ("1", "bsp")
    assert rows(**hybrid, hybrid={"outer": "async"})["consistency"] == "asp, old updates count less"
