"""With error feedback nothing is lost: what was decoded follows what was given, whatever is broken off on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.names import codec_named
from shoal.testing.codec_contract import norm, sample

pytestmark = pytest.mark.unit

SPECS = ("none", "bf16", "fp16", "int8", "int8:stochastic", "topk:0.1", "powersgd:2")
SHAPES = {"matrix": (32, 24), "vector": (50,)}
ROUNDING = 1e-4

Step = tuple[int, float, str]

# a step: which tensors are given, how large the batch is, and how it ends
STEPS = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([1.0, 3.0, 100.0]), st.sampled_from(["commit", "discard", "flush"])),
    min_size=1,
    max_size=25,
)
HISTORY: list[Step] = [
    (1, 3.0, "commit"), (2, 3.0, "commit"), (3, 100.0, "commit"), (4, 1.0, "discard"), (4, 1.0, "commit"),
    (5, 3.0, "commit"), (6, 3.0, "flush"), (7, 100.0, "commit"), (8, 3.0, "commit"),
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_tracks(spec: str, steps: list[Step]) -> None:
    """Sums of mean gradients: those that were decoded, and what is left, are those that were given. A gradient is a sum
    over a batch; what counts is the sum over its size."""
    feedback = ErrorFeedback(codec_named(spec))
    given_sum = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    decoded_sum = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for number, (seed, size, end) in enumerate(steps):
        if number == len(steps) // 2:  # a checkpoint, from which another one goes on
            state = feedback.state()
            feedback = ErrorFeedback(codec_named(spec))
            feedback.load(state)
        before = feedback.state()
        for name, shape in SHAPES.items():
            tensor = sample(shape, seed=seed) * size
            out = torch.empty(shape)
            if end == "flush":
                feedback.flush(name, out.copy_(tensor), size)
            else:
                feedback.codec.decode(name, feedback.encode(name, tensor, size), out)
            if end != "discard":
                given_sum[name] += tensor.double() / size
                decoded_sum[name] += out.double() / size
        if end == "discard":
            feedback.discard()
            after = feedback.state()
            assert after.keys() == before.keys(), "a step that was broken off left a residual"
            assert all(torch.equal(before[name], after[name]) for name in before), "a residual has changed"
        else:
            feedback.commit()
    left = feedback.state()
    for name, total in given_sum.items():
        missing = norm(total - decoded_sum[name] - left.get(name, torch.zeros(())))
        assert missing <= ROUNDING * (1 + len(steps)), f"{spec}: {name} has lost {missing}"


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(spec=st.sampled_from(SPECS), steps=STEPS)
def test_what_is_decoded_follows_what_is_given(spec: str, steps: list[Step]) -> None:
    check_tracks(spec, steps)


@pytest.mark.parametrize("spec", SPECS)
def test_it_does_so_in_the_history_that_shows_faults(spec: str) -> None:
    check_tracks(spec, HISTORY)


@pytest.mark.parametrize("spec", SPECS)
def test_the_residual_stays_small_where_gradients_stay_the_same(spec: str) -> None:
    """A tenth of all numbers, or two of 24 ranks, a step: what is left is a few steps' worth, however long it goes."""
    feedback, gradient = ErrorFeedback(codec_named(spec)), sample((32, 24))
    sizes = []
    for _ in range(80):
        feedback.encode("w", gradient)
        feedback.commit()
        sizes.append(norm(feedback.state()["w"]) / norm(gradient))
    assert max(sizes[40:]) <= 1.2 * max(sizes[:40]) + 1e-6
    assert max(sizes) < 20


def test_a_name_is_encoded_once_between_commits() -> None:
    feedback = ErrorFeedback(codec_named("int8"))
    feedback.encode("w", sample((5,)))
    with pytest.raises(AssertionError, match="w was encoded twice"):
        feedback.encode("w", sample((5,)))


def test_loading_forgets_what_is_not_loaded() -> None:
    feedback = ErrorFeedback(codec_named("topk:0.1"))
    for name in ("a", "b"):
        feedback.encode(name, sample((50,)))
    feedback.commit()
    feedback.load({"a": torch.ones(50)})
    assert feedback.state().keys() == {"a"}
    feedback.load({})
    assert feedback.state() == {}


# ---- broken on purpose


def dropped(self: ErrorFeedback) -> None:
    right_commit(self)
    for residual in self._kept.values():
        residual.zero_()


def counted_twice(self: ErrorFeedback, name: str, tensor: torch.Tensor, size: float) -> torch.Tensor:
    total = right_owed(self, name, tensor, size)
    if name in self._kept:
        total.add_(self._kept[name], alpha=size / self._kept_sizes[name])
    return total


def size_ignored(self: ErrorFeedback, name: str, tensor: torch.Tensor, size: float) -> torch.Tensor:
    return right_owed(self, name, tensor, self._kept_sizes.get(name, size))


def kept_when_discarded(self: ErrorFeedback) -> None:
    right_commit(self)


def not_restored(self: ErrorFeedback, state: dict[str, torch.Tensor]) -> None:
    right_load(self, {})


def flushed_and_kept(self: ErrorFeedback, name: str, tensor: torch.Tensor, size: float = 1.0) -> None:
    if name in self._kept:
        tensor.add_(self._kept[name], alpha=size / self._kept_sizes[name])


right_commit, right_owed, right_load = ErrorFeedback.commit, ErrorFeedback._owed, ErrorFeedback.load

FAULTS: list[tuple[str, Callable[..., Any]]] = [
    ("commit", dropped),
    ("_owed", counted_twice),
    ("_owed", size_ignored),
    ("discard", kept_when_discarded),
    ("load", not_restored),
    ("flush", flushed_and_kept),
]


@pytest.mark.mutation
@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[fault.__name__ for _, fault in FAULTS])
def test_a_fault_in_error_feedback_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., Any]
) -> None:
    assert hasattr(ErrorFeedback, name)
    monkeypatch.setattr(ErrorFeedback, name, fault)
    for spec in ("int8", "topk:0.1", "powersgd:2"):
        with pytest.raises(AssertionError, match=r"has lost|a residual"):
            check_tracks(spec, HISTORY)
