"""Who runs another program than the others is found out before the first step."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.train.opening import Odd, odd_one

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("samples", "odd"),
    [
        ([5, 5, 5], None),
        ([5, 6, 5], Odd(1, 0, "samples: 6 against 5")),
        ([6, 5, 5], Odd(0, 1, "samples: 6 against 5")),
        ([5, 6], Odd(1, 0, "samples: 6 against 5")),
        ([5, 6, 6, 5], Odd(1, 0, "samples: 6 against 5")),
        ([[1, 2], [1, 2], [2, 1]], Odd(2, 0, "samples: [2, 1] against [1, 2]")),
        ([5], None),
    ],
)
def test_the_one_that_differs_from_most_is_named(samples: list[Any], odd: Odd | None) -> None:
    assert odd_one([{"same": 1, "samples": one} for one in samples]) == odd
