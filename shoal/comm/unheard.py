"""Which peers do not hear us: packets to them are not acknowledged, though both sides live.

The kernel knows, for each connection: it counts how often it has sent the same again without an answer. A slow link, a
busy peer or a frozen one cannot be mistaken for that: as long as the peer's host gets packets, its kernel acknowledges
them. So this accuses links, never processes.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.comm.control import ControlPage
from shoal.comm.peer_sockets import socket_inodes
from shoal.core.teams import Part
from shoal.core.world import Member, View

LOOK_S = 0.5  # between two looks
SILENT_S = 2.5  # a link on which nothing was acknowledged in all looks for so long is said to be silent
_GAP_S = 1.2  # gloo gives up a connection that does not come about and tries another: no sign of life in between
_REPEATED = 3  # so often the same was sent without an answer, for 1.4 s at least
_ESTABLISHED, _CONNECTING = 1, 2  # the kernel's numbers
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Connection:
    """A row of the kernel's table: the address at the other end, what it is doing, how many bytes were sent and not
    acknowledged, and how often the oldest of them was sent again since the last acknowledgement."""

    remote: str
    state: int
    unacknowledged: int
    repeated: int
    inode: int

    @property
    def silent(self) -> bool:
        """Whether the other end should have answered and has not."""
        waits = self.state == _ESTABLISHED and self.unacknowledged > 0 and self.repeated >= _REPEATED
        return waits or self.state == _CONNECTING


def parse(table: str) -> Iterator[Connection]:
    """The rows of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9:
            unacknowledged = int(words[4].partition(":")[0], 16)
            yield Connection(_address(words[2]), int(words[3], 16), unacknowledged, int(words[6], 16), int(words[9]))


def _address(word: str) -> str:
    """The address in the kernel's writing: words of four bytes in the machine's order, then the port."""
    digits = bytes.fromhex(word.partition(":")[0])
    if len(digits) == 4:
        return str(ipaddress.IPv4Address(digits[::-1]))
    whole = ipaddress.IPv6Address(b"".join(digits[at : at + 4][::-1] for at in range(0, 16, 4)))
    return str(whole.ipv4_mapped or whole)


def silent_addresses() -> set[str]:
    """Addresses that do not answer this process."""
    mine, found = socket_inodes(), set()
    for table in _TABLES:
        try:
            rows = Path(table).read_text()
        except OSError:
            continue
        found |= {one.remote for one in parse(rows) if one.silent and one.inode in mine}
    return found


class Unheard:
    """Looks, while `member` waits for the others of `part`, whether packets to one of them get lost, and says so where
    the agent of this host sees it (`ControlPage.unheard`) and in this worker's log. For one thread."""

    def __init__(self, view: View, part: Part, member: Member, control: ControlPage) -> None:
        elsewhere = [one for one in part.members if one.address and one.address != member.address]
        self._peers = {one.address: one for one in reversed(elsewhere)}  # the first of each host speaks for it
        self._number, self._member, self._control = view.number, member, control
        self._since: dict[str, tuple[float, float]] = {}  # when a silence began, and when it was last seen
        self._look_s = 0.0
        self.rank: int | None = None  # of a peer that does not hear us, in the view

    def look(self, now_s: float) -> None:
        """To be called often while waiting; it really looks now and then."""
        if not self._peers or now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        silent = silent_addresses() & set(self._peers)
        for address in silent:
            began_s, _ = self._since.get(address, (now_s, now_s))
            self._since[address] = began_s, now_s
        self._since = {one: seen for one, seen in self._since.items() if now_s - seen[1] < _GAP_S}
        lasting = {
            self._peers[one].rank: one for one, (began_s, _) in self._since.items() if now_s - began_s >= SILENT_S
        }
        proved = [rank for rank, one in lasting.items() if one in silent or rank == self.rank]
        self._tell(min(proved, default=None))

    def heard(self) -> None:
        """What was waited for has come."""
        if self._since or self.rank is not None:
            self._since.clear()
            self._tell(None)

    def _tell(self, rank: int | None) -> None:
        if rank == self.rank:
            return
        self.rank = rank
        self._control.unheard(self._member.seat, self._number, rank)
        if rank is not None:
            peer = next(one for one in self._peers.values() if one.rank == rank)
            _log.warning(
                "shoal: %s (%s) does not hear %s (%s): nothing that is sent there is acknowledged",
                peer, peer.address, self._member, self._member.address,
            )  # fmt: skip
