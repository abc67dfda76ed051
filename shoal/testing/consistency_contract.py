"""What every consistency promises, as tests. Its test class inherits them and says which values it can have::

class TestMine(ConsistencyContract):
    values = (Mine(1), Mine(5))
"""

from __future__ import annotations

from typing import ClassVar

from shoal.core.consistency import Consistency, parse


class ConsistencyContract:
    """Give `values`: some consistencies of one kind."""

    values: ClassVar[tuple[Consistency, ...]]

    def test_it_is_read_as_it_is_written(self) -> None:
        for one in self.values:
            assert parse(str(one)) == one
            assert hash(parse(str(one))) == hash(one)

    def test_the_slowest_may_always_go_on(self) -> None:
        """Or nobody could."""
        assert all(one.allows(clock, clock) for one in self.values for clock in range(20))

    def test_nobody_is_held_back_because_others_get_ahead(self) -> None:
        for one in self.values:
            for clock in range(20):
                allowed = [one.allows(clock, slowest) for slowest in range(clock + 1)]
                assert allowed == sorted(allowed)

    def test_the_bound_is_what_is_allowed(self) -> None:
        for one in self.values:
            ahead = [lead for lead in range(50) if one.allows(lead, 0)]
            assert ahead == list(range(50 if one.bound is None else one.bound + 1))
