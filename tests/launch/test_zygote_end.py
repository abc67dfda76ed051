"""A zygote whose launcher is gone ends without a word."""

from __future__ import annotations

import socket

import pytest

from shoal.launch.zygote import _Zygote

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("unread", [False, True])
def test_it_ends_quietly_with_its_launcher(unread: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = _Zygote(theirs)
    if unread:
        zygote.send(event="forked", key=1, pid=1)
    ours.close()  # with a message unread the next read is a reset, not an end
    zygote.serve()
    theirs.close()
