"""Who holds another model than the others: found by a checksum of a piece of it, and named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.core.errors import ReplicasDiffer
from shoal.core.world import Member, View
from shoal.strategies.likeness import EVERY, NOTHING, Likeness, compare, outliers

pytestmark = pytest.mark.unit


def view(*hosts: str) -> View:
    return View(
        1, tuple(Member("worker", rank, host, 10 + rank, str(rank), host, rank) for rank, host in enumerate(hosts))
    )


def model(large: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, large), nn.BatchNorm1d(large), nn.Linear(large, 2))


ONE_HOST, TWO_HOSTS = view("a", "a", "a"), view("a", "b", "b")


@pytest.mark.parametrize("where", [ONE_HOST, TWO_HOSTS], ids=["one host", "two hosts"])
def test_the_same_model_looks_the_same(where: View) -> None:
    one, other = Likeness(model(), where, "cpu"), Likeness(model(), where, "cpu")
    assert one.see(EVERY) == other.see(EVERY) != NOTHING
    assert one.see(EVERY + 1) == NOTHING


@pytest.mark.parametrize("name", ["0.weight", "2.bias", "1.running_mean", "1.num_batches_tracked"])
def test_on_one_host_a_bit_is_enough(name: str) -> None:
    changed = model()
    with torch.no_grad():
        tensor = changed.state_dict()[name]
        tensor.view(-1).view(torch.uint8)[0] ^= 1
    assert Likeness(model(), ONE_HOST, "cpu").see(0) != Likeness(changed, ONE_HOST, "cpu").see(0)


@pytest.mark.parametrize(("factor", "odd"), [(1 + 1e-6, []), (1.05, [1]), (0.0, [1])])
def test_hosts_may_round_differently(factor: float, odd: list[int]) -> None:
    changed = model()
    with torch.no_grad():
        changed[0].weight.mul_(factor)  # type: ignore[index, union-attr, operator]
    likenesses = [Likeness(one, TWO_HOSTS, "cpu") for one in (model(), changed, model())]
    assert outliers([one.see(0) for one in likenesses]) == odd


def test_every_element_is_looked_at_in_turn() -> None:
    """A large model is cut into pieces; no change is missed by all of them."""
    large = 20_000
    one, changed = model(large), model(large)
    with torch.no_grad():
        changed[2].weight[1, -1] += 1.0  # type: ignore[index, union-attr, operator]
    first, second = Likeness(one, ONE_HOST, "cpu"), Likeness(changed, ONE_HOST, "cpu")
    assert first.count > 5
    differ = [first.look(number) != second.look(number) for number in range(first.count)]
    assert sum(differ) == 1


def test_what_workers_do_not_combine_may_differ() -> None:
    class Remembering(nn.Linear):
        def __init__(self, seen: int) -> None:
            torch.manual_seed(0)
            super().__init__(2, 2)
            self.register_buffer("seen", torch.tensor([seen, seen]))

    assert Likeness(Remembering(1), ONE_HOST, "cpu").see(0) == Likeness(Remembering(2), ONE_HOST, "cpu").see(0)


@pytest.mark.parametrize(
    ("values", "odd"),
    [([5, 5, 5], []), ([5, 6, 5], [1]), ([6, 5, 5], [0]), ([5, 6], [1]), ([5, 6, 7, 5], [1, 2]), ([5], []), ([], [])],
)
def test_the_odd_ones_are_those_that_differ_from_most(values: list[float], odd: list[int]) -> None:
    assert outliers([(value, 0.0) for value in values]) == odd


def test_the_error_names_worker_and_host() -> None:
    with pytest.raises(
        ReplicasDiffer, match=r"^worker 2 on b holds other parameters .* than worker 0 on a before step 32"
    ):
        compare([(1.0, 0.0), (1.0, 0.0), (2.0, 0.0)], TWO_HOSTS, 32)
