"""The right interface is found, and what --listen says is read or refused with the remedy."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import pytest

from shoal.core.errors import ConfigError, UserError
from shoal.launch.interfaces import (
    Endpoint,
    interface_of,
    interfaces,
    listen_endpoint,
    outward_address,
    remote_endpoint,
    route_to,
    same_host_id,
)
from shoal.testing.hosts import Hosts


@pytest.mark.unit
def test_loopback_is_reached_from_loopback_and_has_a_name() -> None:
    assert route_to("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
    assert any(one.loopback and one.up for one in interfaces())


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1", Endpoint("127.0.0.1", 0)), ("localhost", Endpoint("127.0.0.1", 0))],
)
def test_listen_names_an_address_of_this_host(text: str, expected: Endpoint) -> None:
    assert listen_endpoint(text) == expected


@pytest.mark.unit
def test_listen_takes_a_port_that_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use: choose another"):
            listen_endpoint(f"127.0.0.1:{port}")
    assert listen_endpoint(f"127.0.0.1:{port}") == Endpoint("127.0.0.1", port)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "give an address"),
        ("127.0.0.1:http", "'http' is no port"),
        ("127.0.0.1:0", "'0' is no port"),
        ("127.0.0.1:70000", "is no port"),
        ("fe80::1", "IPv6 addresses are not supported"),
        ("0.0.0.0:29400", "one interface only"),
        ("203.0.113.7", "not an address of this host"),
        ("no-such-host.invalid", "no host 'no-such-host.invalid' is known"),
    ],
)
def test_listen_refuses_with_the_remedy(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        listen_endpoint(text)


@pytest.mark.unit
def test_the_address_to_join_has_a_port() -> None:
    assert remote_endpoint("127.0.0.1:29400", "ADDRESS") == Endpoint("127.0.0.1", 29400)
    for text in ("127.0.0.1", ":29400"):
        with pytest.raises(ConfigError, match="ADDRESS:PORT"):
            remote_endpoint(text, "ADDRESS")


WITHOUT_TORCH = "import sys; sys.argv = ['-m']\n"
ASK = """
from shoal.launch.interfaces import *
way = route_to("{peer}")
print(way, interface_of(way), outward_address(), same_host_id(), listen_endpoint(":29400"))
"""


@pytest.mark.ranks
def test_on_each_host_its_own_address_is_found(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts(2)
    a, b = hosts[0], hosts[1]
    seen = []
    for here, there in ((a, b), (b, a)):
        asked = here.run(sys.executable, "-c", WITHOUT_TORCH + ASK.format(peer=there.address))
        assert asked.returncode == 0, asked.stderr
        way, name, outward, host_id, listening = asked.stdout.split()
        assert (way, name, outward, listening) == (here.address, "eth0", here.address, f"{here.address}:29400")
        seen.append(host_id)
    # one boot, but two networks: only one of them is also ours
    assert len({*seen, same_host_id()}) == 3


@pytest.mark.ranks
def test_no_way_to_a_host_is_said_plainly(make_hosts: Callable[..., Hosts]) -> None:
    alone = make_hosts(1)[0]
    ask = "from shoal.launch.interfaces import route_to; route_to('198.51.100.1')"
    asked = alone.run(sys.executable, "-c", WITHOUT_TORCH + ask)
    assert "this host has no way to 198.51.100.1" in asked.stderr.strip().splitlines()[-1]


@pytest.mark.unit
def test_without_a_network_auto_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(address: str) -> str:
        raise UserError("no way")

    monkeypatch.setattr("shoal.launch.interfaces.route_to", nowhere)
    monkeypatch.setattr("shoal.launch.interfaces.interfaces", list)
    with pytest.raises(UserError, match="no network interface but loopback"):
        outward_address()
