"""Which of this host's addresses a run uses, found by asking the kernel, and what --listen may say."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from shoal.core.errors import ConfigError, UserError

LOOPBACK = "127.0.0.1"
_ANYWHERE = ("192.0.2.1", 9)  # reserved for documentation: stands for "somewhere else"; nothing is ever sent to it


@dataclass(frozen=True)
class Endpoint:
    """Where something listens. `port` 0: one that is free."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Interface:
    """A network interface with one of its addresses. `speed_mbit` is 0 where the kernel does not know it."""

    name: str
    address: str
    up: bool
    speed_mbit: int

    @property
    def loopback(self) -> bool:
        return self.address.startswith("127.")


def interfaces() -> list[Interface]:
    """All IPv4 addresses of this host, loopback last."""
    states = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == socket.AF_INET:
                state = states.get(name)
                up, speed = (state.isup, state.speed) if state is not None else (False, 0)
                found.append(Interface(name, one.address, up, speed))
    return sorted(found, key=lambda one: (one.loopback, not one.up, one.name))


def route_to(address: str) -> str:
    """This host's own address on the way to `address`, as the kernel would choose it. Sends nothing.

    Raises a `UserError` if there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANYWHERE[1]))
        except OSError as error:
            known = ", ".join(f"{one.name} {one.address}" for one in interfaces() if not one.loopback) or "none"
            raise UserError(
                f"this host has no way to {address} ({error.strerror}): is its network up? Its interfaces: {known}"
            ) from None
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of the interface that has this address, or None."""
    return next((one.name for one in interfaces() if one.address == address), None)


def outward_address() -> str:
    """The address by which this host is most likely reached by others: that of the default route, else the first
    interface that is up. Raises a `UserError` if there is none but loopback."""
    try:
        found = route_to(_ANYWHERE[0])
        if not found.startswith("127."):
            return found
    except UserError:
        pass  # no default route: a network of its own, perhaps
    for one in interfaces():
        if one.up and not one.loopback:
            return one.address
    raise UserError(
        "--listen auto: this host has no network interface but loopback, so no other host can reach it: "
        "bring one up, or leave --listen out"
    )


def listen_endpoint(text: str) -> Endpoint:
    """What --listen states: ``auto``, ``ADDRESS``, ``ADDRESS:PORT``, ``:PORT``; the address is one of this host's.

    A host name is looked up. Raises a `ConfigError` that says what is wrong."""
    host, port = _split(text, "--listen")
    if host in ("", "auto"):
        return Endpoint(outward_address(), port)
    address = _resolve(host, f"--listen {text}")
    if address == "0.0.0.0":  # noqa: S104 - refused
        raise ConfigError(
            f"--listen {text}: a run listens on one interface only: give its address, or auto ({_choices()})"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise ConfigError(_cannot_bind(text, address, port, error)) from None
    return Endpoint(address, port)


def remote_endpoint(text: str, option: str) -> Endpoint:
    """Where another host listens: ``ADDRESS:PORT``. Raises a `ConfigError` that says what is wrong."""
    host, port = _split(text, option)
    if not host or port == 0:
        raise ConfigError(f"{option} {text}: write it as ADDRESS:PORT, as the other host has printed it")
    return Endpoint(_resolve(host, f"{option} {text}"), port)


def same_host_id() -> str:
    """The same for processes that share this host's memory and network: boot id and network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{Path('/proc/self/ns/net').stat().st_ino}"


def _split(text: str, option: str) -> tuple[str, int]:
    text = text.strip()
    if text.count(":") > 1 or "[" in text:
        raise ConfigError(f"{option} {text}: IPv6 addresses are not supported: give an IPv4 address or a host name")
    host, colon, port = text.partition(":")
    if colon and not (port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"{option} {text}: {port!r} is no port: give a number from 1 to 65535, or leave it out")
    if not host and not colon:
        raise ConfigError(f"{option}: give an address, such as {option} auto or {option} 192.168.1.5:29400")
    return host, int(port) if colon else 0


def _resolve(host: str, stated: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{stated}: no host {host!r} is known ({error.strerror})") from None
    return str(found[0][4][0])


def _cannot_bind(text: str, address: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--listen {text}: {address} is not an address of this host ({_choices()})"
    if error.errno == errno.EADDRINUSE:
        return f"--listen {text}: port {port} is in use: choose another, or leave it out for one that is free"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"--listen {text}: port {port} may not be used without privileges: choose one above 1023"
    return f"--listen {text}: cannot listen there ({error.strerror})"


def _choices() -> str:
    return "it has " + (", ".join(f"{one.address} on {one.name}" for one in interfaces()) or "none")
