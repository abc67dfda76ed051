"""A shard: what each operation does, what it is answered with, and what it refuses."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from store_cases import DENSE, Client, T, W, dense, ones, rows, whole

from shoal.store import answers
from shoal.store import operations as ops
from shoal.store.answered import WINDOW
from shoal.store.keys import DenseKey, Slice, SparseKey
from shoal.store.operations import Shaping
from shoal.store.shard import Shard
from shoal.store.updaters import Updater, updaters

pytestmark = pytest.mark.unit


@pytest.fixture
def client() -> Client:
    client = Client()
    client.declare()
    return client


# ---- declaring


def test_a_slice_is_declared_once_and_kept(client: Client) -> None:
    client.push(ones())
    client.declare()
    assert client.values() == [1.0] * 6


@pytest.mark.parametrize(
    ("holding", "words"),
    [
        (ops.Holding(whole(DENSE), "assign"), "is held as"),
        (ops.Holding(whole(DENSE), "add", group=1), "is held as"),
        (ops.Holding(Slice(DENSE, 0, 3), "add"), "overlaps"),
        (ops.Holding(whole(DenseKey("w", (6,), "float64")), "add"), "is held as"),
        (ops.Holding(whole(DenseKey("v", (2,))), "sdg"), "unknown updater"),
        (ops.Holding(whole(DenseKey("v", (2,))), "sgd", {"momentum": 2.0}), "momentum"),
        (ops.Holding(whole(DenseKey("v", (2,), "int64")), "sgd"), "needs floats"),
    ],
)
def test_what_does_not_fit_is_refused_as_a_whole(client: Client, holding: ops.Holding, words: str) -> None:
    before = client.shard.dump()[0]["held"]
    fine = ops.Holding(whole(DenseKey("fine", (1,))), "add")
    refused = client.refused(ops.Declare, (fine, holding))
    assert refused.reason == "mismatch"
    assert words in refused.detail
    assert client.shard.dump()[0]["held"] == before


def test_parts_of_one_key_lie_side_by_side_and_can_be_removed(client: Client) -> None:
    key = DenseKey("v", (10,))
    client.done(ops.Declare, (ops.Holding(Slice(key, 0, 4)), ops.Holding(Slice(key, 6, 10))))
    client.stage("s", 0, dense(1, 2, 3, 4, where="v[0:4]"), ones())
    client.done(ops.Remove, ("v[0:4]",))
    assert client.shard.do(ops.Pull((ops.Wanted("v[0:4]"),))) == answers.Refused(
        0, "unknown", "v[0:4] is not held here: declare it first"
    )
    client.done(ops.Declare, (ops.Holding(Slice(key, 0, 6)),))
    client.commit("s", 0)
    assert client.values("v[0:6]") == [0.0] * 6
    assert client.values() == [1.0] * 6


# ---- writing and reading


def test_pushes_are_applied_at_once_and_counted(client: Client) -> None:
    assert client.push(ones(2.0)).version == 1
    assert client.push(ones(3.0), rows(5, 7)).version == 2
    assert client.values() == [5.0] * 6
    assert client.values(T) == [[0, 0], [1, 1], [0, 0], [1, 1], [0, 0], [0, 0]]


def test_set_overwrites_and_the_last_of_a_row_counts(client: Client) -> None:
    client.push(ones(2.0))
    client.done(ops.Set, (dense(1, 2, 3, 4, 5, 6), ops.Update(T, np.array([[1, 1], [2, 2.0]]), np.array([4, 4]))))
    assert client.values() == [1, 2, 3, 4, 5, 6]
    assert client.values(T)[0] == [2, 2]


def test_rows_that_are_pushed_twice_are_added_up(client: Client) -> None:
    client.push(ops.Update(T, np.array([[1, 1], [10, 10], [2, 2.0]]), np.array([9, 4, 9], np.int32)))
    assert client.values(T) == [[10, 10], [0, 0], [0, 0], [0, 0], [0, 0], [3, 3]]


def test_a_table_may_be_pushed_whole(client: Client) -> None:
    client.push(ops.Update(T, np.ones((6, 2))))
    assert client.values(T) == [[1, 1]] * 6


def test_arrays_of_any_shape_and_width(client: Client) -> None:
    client.push(ops.Update(W, np.ones((3, 2), np.float32)))
    client.push(ops.Update(W, np.ones(6, np.int16)))
    assert client.values() == [2.0] * 6


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (ops.Update("v[0:6]", np.ones(6)), "unknown"),
        (ops.Update(W, np.ones(5)), "mismatch"),
        (ops.Update(W, np.ones(6, np.complex64)), "mismatch"),
        (ops.Update(W, np.ones((1, 2)), np.array([4])), "mismatch"),
        (ops.Update(T, np.ones((1, 2)), np.array([3])), "mismatch"),
        (ops.Update(T, np.ones((1, 2)), np.array([10])), "mismatch"),
        (ops.Update(T, np.ones((2, 2)), np.array([4])), "mismatch"),
        (ops.Update(T, np.ones((1, 2)), np.array([4.0])), "mismatch"),
    ],
)
@pytest.mark.parametrize("kind", ["set", "push", "pushpull", "stage"])
def test_what_does_not_fit_changes_nothing(client: Client, kind: str, update: ops.Update, reason: str) -> None:
    client.push(ones())
    updates = (ones(7.0), update)
    change: tuple[Any, ...] = {
        "set": (ops.Set, updates),
        "push": (ops.Push, updates),
        "pushpull": (ops.PushPull, updates, ()),
        "stage": (ops.Stage, "x", 0, updates),
    }[kind]
    assert client.refused(*change).reason == reason
    assert client.values() == [1.0] * 6
    assert client.shard.version == 1
    assert client.shard.do(ops.Staged()) == answers.StagedParts(1, ())


def test_whole_numbers_are_not_scaled(client: Client) -> None:
    client.done(ops.Declare, (ops.Holding(whole(DenseKey("n", (2,), "int64")), "add"),))
    update = ops.Update("n[0:2]", np.array([2**60, 1]))
    client.push(update, rates=(1.0,))
    assert client.values("n[0:2]") == [2**60, 1]
    for shaping in (Shaping(divisor=2.0), Shaping(scale=0.5), Shaping(clip=1.0), Shaping(limits=(0, 1))):
        assert client.refused(ops.Push, (update,), (), shaping).reason == "mismatch"
    assert client.refused(ops.Push, (ops.Update("n[0:2]", np.ones(2)),)).reason == "mismatch"


def test_dense_values_are_read_whole_in_part_or_not_at_all(client: Client) -> None:
    client.done(ops.Set, (dense(1, 2, 3, 4, 5, 6),))
    part = client.pull(W, span=(2, 4)).values
    assert part is not None
    assert part.tolist() == [3, 4]
    seen = client.pull(W)
    assert seen.version == 1
    assert client.pull(W, since=1).values is None
    client.push(rows(4))
    assert client.pull(W, since=1).values is None, "only the table has changed"
    client.push(ones())
    assert client.pull(W, since=1).values is not None


def test_what_is_read_cannot_be_written(client: Client) -> None:
    found = client.pull(W).values
    assert found is not None
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1.0


def test_rows_are_read_by_number_or_by_what_has_changed(client: Client) -> None:
    client.push(rows(4, 6, times=1.0))  # version 1
    client.push(rows(6, 8, times=2.0))  # version 2
    named = client.pull(T, rows=[8, 4, 8])
    assert named.values is not None
    assert named.values.tolist() == [[2, 2], [1, 1], [2, 2]]

    changed = client.pull(T, since=1)
    assert changed.rows is not None
    assert changed.values is not None
    assert changed.rows.tolist() == [6, 8]
    assert changed.values.tolist() == [[3, 3], [2, 2]]
    both = client.pull(T, since=1, rows=[4, 6])
    assert both.rows is not None
    assert both.rows.tolist() == [6]
    spanned = client.pull(T, since=0, span=(4, 7))
    assert spanned.rows is not None
    assert spanned.rows.tolist() == [4, 6]
    assert client.pull(T, since=2).values is None
    assert client.pull(T, since=1, rows=[4, 5]).values is None


@pytest.mark.parametrize(
    "wanted",
    [
        ops.Wanted(W, span=(0, 7)),
        ops.Wanted(W, span=(4, 2)),
        ops.Wanted(W, rows=np.array([0])),
        ops.Wanted(T, rows=np.array([0])),
        ops.Wanted(T, rows=np.array([5]), span=(4, 6)),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_pushed(client: Client, wanted: ops.Wanted) -> None:
    refused = client.shard.do(ops.Pull((wanted,)))
    assert isinstance(refused, answers.Refused)
    assert refused.reason == "mismatch"
    assert client.refused(ops.PushPull, (ones(),), (wanted,)).reason == "mismatch"
    assert client.values() == [0.0] * 6


def test_push_and_pull_in_one(client: Client) -> None:
    operation = ops.PushPull((ones(),), (ops.Wanted(W), ops.Wanted(T, since=0)), **client.ticket())
    for _ in range(3):
        answer = client.shard.do(operation)
        assert isinstance(answer, answers.Pulled)
        assert answer.found[0].values is not None
        assert answer.found[0].values.tolist() == [1.0] * 6
        assert answer.found[1].values is None


def test_rates_come_with_the_push_by_group_or_from_the_updater() -> None:
    client = Client()
    key, other = DenseKey("a", (1,), "float64"), DenseKey("b", (1,), "float64")
    holdings = (ops.Holding(whole(key), "sgd", {"rate": 0.5}), ops.Holding(whole(other), "sgd", {}, group=1))
    client.done(ops.Declare, holdings)
    updates = (dense(1, where="a[0:1]"), dense(1, where="b[0:1]"))
    client.push(*updates, rates=(1.0, 10.0))
    assert (client.values("a[0:1]"), client.values("b[0:1]")) == ([-1], [-10])
    client.push(updates[0], shaping=Shaping(rate_scale=0.5))
    assert client.values("a[0:1]") == [-1.25]
    assert client.refused(ops.Push, updates, (1.0,)).reason == "mismatch"


def test_what_is_no_gradient_is_left_alone_by_what_is_done_to_gradients(client: Client) -> None:
    statistics = DenseKey("mean", (2,), "float64")
    client.done(ops.Declare, (ops.Holding(whole(statistics), "add", {}, ops.UNSHAPED),))
    client.stage("s", 0, ones(4.0), dense(3, 5, where="mean[0:2]"))
    shaping = Shaping(divisor=2.0, clip=1.0, scale=0.5, rate_scale=0.5, limits=(-1.0, 1.0))
    squares = client.shard.do(ops.Norms("s", (0,), shaping))
    assert squares == answers.Squares(0, 6.0)
    client.commit("s", 0, shaping=shaping, rates=(1.0,), read_version=0, damping=True)
    assert client.values() == [0.25] * 6
    assert client.values("mean[0:2]") == [3.0, 5.0]


def test_state_of_an_updater_is_read_and_replaced() -> None:
    client = Client()
    client.declare("sgd", momentum=0.5, rate=1.0)
    client.push(ones())
    state = client.shard.do(ops.GetState(W))
    assert isinstance(state, answers.UpdaterState)
    assert state.state["momentum"].tolist() == [1.0] * 6
    client.done(ops.SetState, W, {"momentum": np.full(6, 10.0)})
    client.push(ones(0.0))
    assert client.values() == [-6.0] * 6


# ---- transactions


def test_a_commit_adds_up_its_parts_and_forgets_the_others(client: Client) -> None:
    client.stage("s", 2, ones(1.0), rows(4, 5))
    client.stage("s", 0, ones(2.0), rows(5, 6, times=10.0))
    client.stage("s", 1, ones(100.0))
    assert client.values() == [0.0] * 6
    assert client.shard.do(ops.Staged()) == answers.StagedParts(0, (("s", (0, 1, 2)),))
    made = client.commit("s", 0, 2, shaping=Shaping(divisor=2.0), record=b"step 1")
    assert made == answers.Committed(version=1, number=1, staleness=0, rate_scale=1.0)
    assert client.values() == [1.5] * 6
    assert client.values(T) == [[0.5, 0.5], [5.5, 5.5], [5, 5], [0, 0], [0, 0], [0, 0]]
    assert client.shard.do(ops.Staged()) == answers.StagedParts(1, ())


def test_a_slice_of_which_no_part_speaks_is_left_alone() -> None:
    """As a parameter without a gradient: neither momentum nor decay goes on."""
    client = Client()
    client.declare("sgd", momentum=0.9, rate=1.0)
    client.push(ones(), ops.Update(T, np.ones((6, 2))))
    before = client.values(T)
    client.stage("s", 0, ones())
    client.stage("s", 1)
    client.commit("s", 0, 1)
    assert client.values(T) == before
    assert client.pull(T, since=1).values is None


def test_a_part_staged_again_replaces_the_former(client: Client) -> None:
    client.stage("s", 0, ones(5.0), rows(4))
    client.stage("s", 0, ones(1.0))
    client.commit("s", 0)
    assert client.values() == [1.0] * 6
    assert client.pull(T, since=0).values is None


def test_what_is_missing_or_dropped_cannot_be_committed(client: Client) -> None:
    client.stage("s", 0, ones())
    client.stage("s", 1, ones())
    client.done(ops.Drop, "s", 1)
    refused = client.refused(ops.Commit, transaction="s", parts=(0, 1, 2))
    assert (refused.reason, refused.detail) == ("missing part", "parts [1, 2] of transaction s are not staged")
    assert client.shard.do(ops.Norms("s", (1,))) == answers.Refused(
        0, "missing part", "parts [1] of transaction s are not staged"
    )
    client.done(ops.Drop, "s")
    client.done(ops.Drop, "s")
    assert client.refused(ops.Commit, transaction="s", parts=(0,)).reason == "missing part"
    assert client.shard.version == 0


def test_any_number_of_survivors_may_settle_a_transaction(client: Client) -> None:
    client.stage("s", 0, ones())
    first = client.commit("s", 0, record=b"r", read_version=0, damping=True)
    for name in ("b", "c"):
        again = Client(client.shard, name).commit("s", 0)
        assert again == answers.Committed(1, first.number, first.staleness, first.rate_scale, before=True)
    assert client.values() == [1.0] * 6
    assert client.refused(ops.Stage, "s", 1, (ones(),)).reason == "committed"


def test_commits_are_remembered_until_they_are_forgotten(client: Client) -> None:
    for number in (1, 2, 3):
        client.stage(f"s{number}", 0, ones())
        client.commit(f"s{number}", 0, record=bytes([number]), read_version=0, damping=True)

    def recalled(after: int = 0) -> tuple[answers.Logged, ...]:
        answer = client.shard.do(ops.Recall(after))
        assert isinstance(answer, answers.Recalled)
        return answer.commits

    assert [(one.number, one.staleness, one.commit.record) for one in recalled()] == [
        (1, 0, b"\x01"),
        (2, 1, b"\x02"),
        (3, 2, b"\x03"),
    ]
    assert [one.commit.shaping.rate_scale for one in recalled(1)] == [1 / 2, 1 / 3]
    client.done(ops.Forget, 2)
    assert [one.number for one in recalled()] == [3]


def test_what_one_server_has_committed_has_the_same_effect_on_another() -> None:
    """Settling: the remembered commit is sent to a server that still holds the staged parts."""
    first, other = Client(), Client()
    for client in (first, other):
        client.declare("sgd", rate=1.0)
        client.push(ones())
        client.stage("s", 0, ones())
        client.stage("s", 1, ones())
    shaping = Shaping(divisor=4.0, clip=0.4, scale=0.5, limits=(-1.1, 0.0))
    first.commit("s", 0, 1, shaping=shaping, read_version=0, damping=True, rates=(0.5,))
    recalled = first.shard.do(ops.Recall())
    assert isinstance(recalled, answers.Recalled)
    logged = recalled.commits[0].commit
    given = {name: getattr(logged, name) for name in ("transaction", "parts", "rates", "shaping", "record", "damping")}
    other.done(ops.Drop, "elsewhere")  # another history of requests
    assert isinstance(other.change(ops.Commit, **given), answers.Committed)
    assert other.values() == first.values() == [-1.05] * 6


def test_commits_come_in_order_where_that_is_asked_for(client: Client) -> None:
    client.stage("b", 0, ones())
    refused = client.refused(ops.Commit, transaction="b", parts=(0,), number=2)
    assert (refused.reason, refused.detail) == ("out of turn", "commit 1 is next, not 2")
    client.stage("a", 0)
    client.commit("a", 0, number=1)
    assert client.commit("b", 0, number=2).number == 2


def test_an_update_that_is_old_counts_less(client: Client) -> None:
    for _ in range(3):
        client.push(ones(0.0))
    client.stage("s", 0, ones())
    made = client.commit("s", 0, read_version=0, damping=True)
    assert (made.staleness, made.rate_scale) == (3, 0.25)
    assert client.values() == [0.25] * 6
    client.stage("u", 0, ones())
    assert client.commit("u", 0, read_version=4).rate_scale == 1.0
    client.stage("v", 0, ones())
    assert client.commit("v", 0, read_version=99).staleness == 0


def test_values_that_get_no_update_are_kept_in_limits_too(client: Client) -> None:
    beside, other = DenseKey("run/beside", (2,)), DenseKey("else/where", (2,))
    given = DenseKey("run/given", (1,))
    client.done(ops.Declare, tuple(ops.Holding(whole(key), "add") for key in (given, beside, other)))
    client.done(ops.Set, (dense(5.0, -5.0, where=whole(beside).label), dense(5.0, -5.0, where=whole(other).label)))
    client.stage("s", 0, dense(7.0, where=whole(given).label))
    client.done(ops.Begin, "run", 1)
    client.commit("s", 0, shaping=Shaping(limits=(-1.0, 2.0)), era=ops.Era("run", 1))
    assert client.values(whole(given).label) == [2.0]
    assert client.values(whole(beside).label) == [2.0, -1.0]
    assert client.values(whole(other).label) == [5.0, -5.0], "it is not of this run"


def test_the_gradient_is_divided_clipped_and_scaled_and_values_are_kept_in_limits(client: Client) -> None:
    gradient = dense(8, -8, 2, 0, 4, -2)
    client.stage("s", 0, gradient, rows(4, times=40.0))
    squares = client.shard.do(ops.Norms("s", (0,), Shaping(divisor=2.0, clip=3.0, scale=100.0)))
    assert isinstance(squares, answers.Squares)
    assert squares.squares == 9 + 9 + 1 + 0 + 4 + 1 + 9 + 9
    client.commit("s", 0, shaping=Shaping(divisor=2.0, clip=3.0, scale=0.5, limits=(-1.0, 1.25)))
    assert client.values() == [1.25, -1.0, 0.5, 0.0, 1.0, -0.5]
    assert client.values(T)[0] == [1.25, 1.25]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_sums_of_any_parts_are_right_and_the_same_in_any_order_of_arrival(dtype: str, count: int) -> None:
    key, table = DenseKey("big", (70_001,), dtype), SparseKey("table", 5000, (9,), dtype)
    chance = np.random.default_rng(count)
    parts = []
    expected, expected_rows = np.zeros(70_001), np.zeros((5000, 9))
    for part in range(count):
        wide = "float64" if part % 2 else dtype
        values = chance.normal(size=70_001).astype(wide)
        named = chance.integers(0, 5000, 700) if part != 1 else None
        row_values = chance.normal(size=(5000 if named is None else 700, 9)).astype(dtype)
        expected += values
        np.add.at(expected_rows, slice(None) if named is None else named, row_values.astype(float))
        parts.append((ops.Update("big[0:70001]", values), ops.Update("table[0:5000]", row_values, named)))
    ends = []
    for order in (range(count), reversed(range(count))):
        client = Client()
        client.done(ops.Declare, tuple(ops.Holding(whole(one), "add") for one in (key, table)))
        for part in order:
            client.stage("s", part, *parts[part])
        client.commit("s", *range(count))
        ends.append((client.pull("big[0:70001]").values, client.pull("table[0:5000]").values))
    for one, other, right in zip(*ends, (expected, expected_rows), strict=True):
        assert one is not None
        assert other is not None
        assert one.tobytes() == other.tobytes()
        rounding = {"float16": 4e-3, "float32": 4e-7, "float64": 1e-15}[dtype]
        np.testing.assert_allclose(one, right, atol=rounding * 3 * count, rtol=rounding)


def test_wide_sums_leave_no_trace_of_their_order() -> None:
    """Parts in float64 of float32 parameters: rounded once, after they are divided."""
    key = DenseKey("a", (1,), "float32")
    results = set()
    for parts in ((1e8, 1.0, -1e8, 1.0), (1.0, 1.0, 1e8, -1e8)):
        client = Client()
        client.done(ops.Declare, (ops.Holding(whole(key), "add"),))
        for part, value in enumerate(parts):
            client.stage("s", part, ops.Update("a[0:1]", np.array([value])))
        client.commit("s", 0, 1, 2, 3, shaping=Shaping(divisor=3.0))
        results.add(tuple(client.values("a[0:1]")))
    assert results == {(float(np.float32(2 / 3)),)}


# ---- exactly once


def test_a_repeated_change_is_answered_and_not_done_again(client: Client) -> None:
    push = ops.Push((ones(),), **client.ticket())
    stage = ops.Stage("s", 0, (ones(),), **client.ticket())
    commit = ops.Commit(transaction="s", parts=(0,), **client.ticket())
    first = [client.shard.do(one) for one in (push, stage, commit)]
    assert [client.shard.do(one) for one in (push, stage, commit)] == first
    assert [client.shard.do(one) for one in (commit, push, stage)] == [first[2], first[0], first[1]]
    assert client.values() == [2.0] * 6
    assert client.shard.version == 2


def test_a_refusal_is_not_turned_into_a_change_by_repeating_it(client: Client) -> None:
    commit = ops.Commit(transaction="s", parts=(0,), **client.ticket())
    refused = client.shard.do(commit)
    client.stage("s", 0, ones())
    assert client.shard.do(commit) == refused
    client.commit("s", 0)


def test_answers_are_kept_for_as_many_changes_as_may_be_under_way(client: Client) -> None:
    pushes = [ops.Push((ones(),), **client.ticket()) for _ in range(WINDOW + 5)]
    for push in pushes:
        client.shard.do(push)
    for at, push in enumerate(pushes):
        again = client.shard.do(push)
        assert isinstance(again, answers.Done if at >= 5 else answers.Refused)
    assert client.values() == [WINDOW + 5.0] * 6


def test_changes_may_overtake_each_other(client: Client) -> None:
    first, second = (ops.Push((ones(),), **client.ticket()) for _ in range(2))
    for push in (second, first, second, first):
        assert isinstance(client.shard.do(push), answers.Done)
    assert client.values() == [2.0] * 6


def test_clients_do_not_know_of_each_other(client: Client) -> None:
    other = Client(client.shard, "other")
    client.push(ones())
    other.sequence = client.sequence - 1
    other.push(ones())
    assert client.values() == [2.0] * 6
    client.done(ops.Dismiss, "other")
    other.sequence = 0
    other.push(ones())
    assert client.values() == [3.0] * 6


# ---- an updater that raises


@dataclass(frozen=True)
class Raises(Updater):
    def update(
        self,
        values: npt.NDArray[Any],
        gradient: npt.NDArray[Any],
        state: dict[str, npt.NDArray[Any]],
        rate: float,
        rows: npt.NDArray[Any] | None = None,
    ) -> None:
        raise ArithmeticError("my own mistake")


def test_an_updater_that_raises_stops_the_shard(client: Client) -> None:
    if "raises" not in updaters:
        updaters.add("raises")(Raises)
    client.done(ops.Declare, (ops.Holding(whole(DenseKey("v", (1,))), "raises"),))
    with pytest.raises(ArithmeticError, match="my own mistake"):
        client.push(ones(), dense(1, where="v[0:1]"))
    with pytest.raises(ArithmeticError, match="my own mistake"):
        client.shard.do(ops.Staged())


# ---- memory


def _peak_bytes(client: Client, *operations: ops.Operation) -> int:
    tracemalloc.start()
    try:
        for operation in operations:
            assert not isinstance(client.shard.do(operation), answers.Refused)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


_LARGE = 1 << 21  # elements: 8 MiB
_LITTLE = 1 << 20  # bytes


@pytest.mark.parametrize(
    ("updater", "options"), [("assign", {}), ("add", {}), ("sgd", {"momentum": 0.9}), ("adam", {}), ("average", {})]
)
def test_a_large_push_is_applied_without_copies(updater: str, options: dict[str, Any]) -> None:
    client, key = Client(), DenseKey("large", (_LARGE,))
    client.done(ops.Declare, (ops.Holding(whole(key), updater, options),))
    update = ops.Update(f"large[0:{_LARGE}]", np.ones(_LARGE, np.float32))
    client.push(update, shaping=Shaping(scale=0.5))  # what an updater keeps, and room for the sum, is made once
    for shaping in (Shaping(), Shaping(scale=0.5, clip=2.0)):
        assert _peak_bytes(client, ops.Push((update,), (), shaping, **client.ticket())) < _LITTLE
    wanted = ops.Wanted(update.where)
    assert _peak_bytes(client, ops.PushPull((update,), (wanted,), **client.ticket())) < _LITTLE


def test_memory_of_staged_parts_is_used_again() -> None:
    client, key = Client(), DenseKey("large", (_LARGE,))
    client.done(ops.Declare, (ops.Holding(whole(key), "sgd"),))
    update = ops.Update(f"large[0:{_LARGE}]", np.ones(_LARGE, np.float32))

    def step(number: int) -> list[ops.Operation]:
        name, parts = f"s{number}", (0, 1, 2)
        return [
            *(ops.Stage(name, part, (update,), **client.ticket()) for part in parts),
            ops.Norms(name, parts, Shaping(divisor=3.0)),
            ops.Commit(transaction=name, parts=parts, shaping=Shaping(divisor=3.0), **client.ticket()),
        ]

    assert _peak_bytes(client, *step(1)) > 3 * 4 * _LARGE
    assert _peak_bytes(client, *step(2)) < _LITTLE
    assert _peak_bytes(client, *step(3)) < _LITTLE


def test_a_part_may_be_received_into_memory_of_the_shard(client: Client) -> None:
    room = client.shard.lend(W)
    room[:] = 3.0
    client.stage("s", 0, ops.Update(W, room))
    assert client.shard.committing.staging.transactions["s"][0][W].values is room
    client.commit("s", 0)
    assert client.values() == [3.0] * 6
    unused = client.shard.lend(W)
    assert unused is room
    client.shard.give_back(unused)
    unused[:] = 5.0
    client.stage("t", 0, ops.Update(W, unused))  # no longer lent: copied as any other
    assert client.shard.committing.staging.transactions["t"][0][W].values.tolist() == [5.0] * 6


def test_the_operations_arrays_are_left_as_they_are() -> None:
    client = Client()
    client.declare("sgd")
    given = np.arange(6.0)
    given.flags.writeable = False
    for part in (0, 1):
        client.stage("s", part, ops.Update(W, given))
    client.commit("s", 0, 1, shaping=Shaping(divisor=2.0, clip=1.0, scale=0.1))
    client.push(ops.Update(W, given), shaping=Shaping(divisor=2.0, clip=1.0, scale=0.1))
    client.done(ops.Set, (ops.Update(W, given),))
    client.push(ones())
    assert given.tolist() == list(range(6))


def test_an_empty_shard_is_asked() -> None:
    shard = Shard()
    assert shard.do(ops.Staged()) == answers.StagedParts(0, ())
    assert shard.do(ops.Recall()) == answers.Recalled(0, ())
    assert shard.do(ops.GetProgress()) == answers.Progress(0, None, 0, (), {}, {}, {}, {})
