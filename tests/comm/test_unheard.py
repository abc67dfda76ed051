"""Peers that do not get what is sent to them: read off the kernel's tables, over time, and told where it is seen."""

from __future__ import annotations

import socket

import pytest

import shoal.comm.unheard
from shoal.comm.control import ControlPage
from shoal.comm.unheard import LOOK_S, SILENT_S, Unheard, parse, silent_addresses
from shoal.core.teams import Part
from shoal.core.world import Member, View
from shoal.elastic.status import AgentWord
from shoal.launch.links import Links

pytestmark = pytest.mark.unit

# as the kernel writes it: idle, sending (2 MB on the way, never sent twice), silent, connecting, listening
TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100580A:A1B2 0200580A:9C40 01 00000000:00000000 00:00000000 00000000     0        0 11 1 0 20 4 30 10 -1
   1: 0100580A:A1B3 0300580A:9C40 01 00200000:00000000 01:00000014 00000000     0        0 12 1 0 20 4 30 10 -1
   2: 0100580A:A1B4 0400580A:9C40 01 00000040:00000000 01:00000300 00000004     0        0 13 1 0 20 4 30 10 -1
   3: 0100580A:A1B5 0500580A:9C40 02 00000001:00000000 01:00000300 00000001     0        0 14 1 0 20 4 30 10 -1
   4: 0100580A:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 15 1 0 100 0 0 10 0
"""


def member(rank: int, host: int) -> Member:
    return Member("worker", rank, f"h{host}", 100 + rank, f"k{rank}", f"agent{host}", 0, f"10.88.0.{host}")


VIEW = View(3, (member(0, 1), member(1, 2), member(2, 2), member(3, 4)))


def test_only_what_is_sent_again_without_an_answer_is_silent() -> None:
    rows = list(parse(TABLE))
    assert [one.remote for one in rows] == ["10.88.0.2", "10.88.0.3", "10.88.0.4", "10.88.0.5", "0.0.0.0"]
    assert [one.inode for one in rows if one.silent] == [13, 14]
    six = (
        TABLE.splitlines()[0]
        + "\n   0: "
        + "0" * 32
        + ":1F90 0000000000000000FFFF00000100007F:D431 01 0:0 00:0 0 0 0 9"
    )
    assert [one.remote for one in parse(six)] == ["127.0.0.1"]


def test_a_connection_to_nobody_is_found_in_the_kernels_own_table() -> None:
    """What listens and accepts nobody, once it has as many as it lets wait, does not answer: packets to it are lost."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(full.getsockname())
            waiting.append(one)
        try:
            assert silent_addresses() == {"127.0.0.1"}
        finally:
            for one in waiting:
                one.close()
    assert "127.0.0.1" not in silent_addresses()


def looks(monkeypatch: pytest.MonkeyPatch, *silences: set[str]) -> list[int | None]:
    """What a worker says of the ranks that do not hear it, at each look."""
    control, told = ControlPage(), []
    control.enter_view(0, VIEW.number)
    unheard = Unheard(VIEW, Part.whole(VIEW), VIEW.members[0], control)
    for at, silent in enumerate(silences):
        monkeypatch.setattr(shoal.comm.unheard, "silent_addresses", lambda silent=silent: silent)
        unheard.look(100.0 + at * LOOK_S)
        assert control.reading(0).unheard == unheard.rank
        told.append(unheard.rank)
    unheard.heard()
    assert control.reading(0).unheard is None
    control.close()
    return told


def test_a_silence_that_lasts_is_told_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    b, c = {"10.88.0.2"}, {"10.88.0.4"}
    lasting = int(SILENT_S / LOOK_S)
    assert looks(monkeypatch, *[b] * lasting, b) == [None] * lasting + [1], "the first worker of its host"
    assert SILENT_S + LOOK_S + 1.5 < 5.0, "with the 1.4 s until the kernel says so, it is told within 5 s"
    assert looks(monkeypatch, *[b] * (lasting - 1), set(), set(), set(), b) == [None] * (lasting + 3)
    assert looks(monkeypatch, *[c] * (lasting + 1))[-1] == 3
    between = [b, b, b, set(), b, b, b]  # gloo has given a connection up and begins another
    assert looks(monkeypatch, *between)[-1] == 1
    assert looks(monkeypatch, *[{"10.88.0.77"}] * 9) == [None] * 9, "who is no peer"


def test_what_was_said_of_an_older_view_is_not_said_of_this_one() -> None:
    control = ControlPage()
    control.enter_view(0, 3)
    control.unheard(0, 3, 0)
    assert control.reading(0).unheard == 0
    control.enter_view(0, 4)
    assert control.reading(0).unheard is None
    control.close()


def test_a_pair_of_hosts_is_told_once_and_blamed_until_it_is_forgotten() -> None:
    links, both = Links(), AgentWord(view=VIEW, unheard={"k0": 3, "k3": 0})
    (words,) = links.hear(both, 10.0)
    assert words.startswith("worker 0 on h1 (10.88.0.1) and worker 3 on h4 (10.88.0.4) do not hear each other")
    assert links.hear(both, 11.0) == []
    assert links.hear(AgentWord(view=VIEW), 12.0) == []
    assert links.hear(AgentWord(view=VIEW, unheard={"k3": 0}), 20.0) == [], "the next view has met the same"
    assert links.hear(AgentWord(view=VIEW), 21.0) == []
    assert "do not hear each other" in links.blame(40.0)
    assert links.blame(60.0) == ""
    assert len(links.hear(both, 61.0)) == 1, "it is another silence by now"
    assert Links().hear(AgentWord(view=VIEW, unheard={"k1": 2, "k9": 1, "k0": 99}), 0.0) == [], "one host, or unknown"
