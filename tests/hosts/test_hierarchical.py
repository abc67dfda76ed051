"""Two hosts with two workers each: one of them speaks for its host, so less goes over the link, to the same end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from host_runs import SCRIPT, STEPS, HostRun, difference

from shoal.testing.hosts import Host, Hosts

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
WIDTH = 1024  # enough that gradients are nearly all of the traffic
MODEL_BYTES = 4 * (64 * WIDTH + WIDTH + WIDTH * 10 + 10)
SLACK = 1.15  # headers, acknowledgements, words of the coordinator


def run_in(directory: Path, home: Host) -> HostRun:
    directory.mkdir()
    run = HostRun(directory, home)
    run.script.write_text(SCRIPT.replace("(64, 128)", f"(64, {WIDTH})").replace("(128, 10)", f"({WIDTH}, 10)"))
    return run


def test_gradients_cross_a_link_once_however_many_workers_a_host_has(
    make_hosts: Callable[..., Hosts], tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    a, b = hosts[0], hosts[1]
    one = run_in(tmp_path / "one", a)
    with one.train(listen=None) as command:
        assert command.end() == 0, command.said
    before = [host.bytes_sent() for host in (a, b)]
    two = run_in(tmp_path / "two", a)
    with two.train("--workers", "2", "--min-workers", "4") as home, two.join(b, home, "--workers", "2") as joined:
        assert home.end() == 0, home.said + joined.said
        assert joined.end() == 0, joined.said
    two.check_complete()
    assert two.sizes() == [4]
    assert "hierarchical" in home.said
    assert difference(two.parameters(), one.parameters()) < 5e-6
    for host, sent_before in zip((a, b), before, strict=True):
        sent = host.bytes_sent() - sent_before
        # the least there can be; a ring of four sends 3/2 of it where it crosses the link once, and else more
        assert STEPS * MODEL_BYTES <= sent < SLACK * STEPS * MODEL_BYTES
