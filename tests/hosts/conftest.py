"""Hosts for tests: network namespaces. Where they cannot be made, the test is skipped and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shoal.testing.hosts import Hosts, HostsUnavailable


@pytest.fixture
def make_hosts() -> Iterator[Callable[..., Hosts]]:
    """Makes hosts as `Hosts` does; they are gone after the test, with all that runs on them."""
    made: list[Hosts] = []

    def make(count: int, rate: str | None = None) -> Hosts:
        try:
            made.append(Hosts(count, rate))
        except HostsUnavailable as reason:
            pytest.skip(f"no hosts can be made here: {reason}")
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()
