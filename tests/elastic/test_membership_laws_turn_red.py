"""Membership broken on purpose: the random histories must notice each fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_membership_histories import test_whatever_happens_the_laws_hold as histories

from shoal.core.world import Member, View
from shoal.elastic.membership import Membership
from shoal.elastic.roster import Roster

pytestmark = [pytest.mark.unit, pytest.mark.mutation]


def a_message_of_an_old_view_counts(self: Membership, member: Member) -> bool:
    return self._status(member).state in ("left", "broken")


def nobody_is_waited_for(self: Membership, member: Member) -> bool:
    return True


def numbers_are_used_twice(self: Membership, chosen: tuple[str, ...], fit: int) -> None:
    right_form(self, chosen, fit)
    self.view = View(max(1, self.view.number - 1), self.view.members)


def who_was_put_out_may_come_back(self: Roster, key: str, cause: str, lost: bool) -> None:
    right_put_out(self, key, cause, lost)
    self.out.pop(key, None)


right_form, right_put_out = Membership._form, Roster.put_out

FAULTS: list[tuple[type, str, Callable[..., Any]]] = [
    (Membership, "_waits", a_message_of_an_old_view_counts),
    (Membership, "_waits", nobody_is_waited_for),
    (Membership, "_form", numbers_are_used_twice),
    (Roster, "put_out", who_was_put_out_may_come_back),
]


@pytest.mark.parametrize(("owner", "name", "fault"), FAULTS, ids=[fault.__name__ for _, _, fault in FAULTS])
def test_a_fault_in_membership_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable[..., Any]
) -> None:
    assert hasattr(owner, name)
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises((AssertionError, ExceptionGroup)):
        histories()
