"""Pushes that travel coded: what servers hold and what is left out are what was given, whatever is broken off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.names import codec_named
from shoal.comm.solo import SoloGroup
from shoal.core.errors import ConfigError, UserError
from shoal.store import operations as ops
from shoal.store.answers import Committed, Done, Pulled
from shoal.store.checking import Cut, check_cut
from shoal.store.directory import Declaration
from shoal.store.keys import DenseKey, Slice, SparseKey
from shoal.store.packing import PackingError
from shoal.store.state import State, pack_command, unpack_command
from shoal.strategies.push_choice import PushChoice
from shoal.strategies.push_coding import PushCoding, frame, framed
from shoal.testing.codec_contract import norm, sample

pytestmark = pytest.mark.unit

SPECS = ("bf16", "fp16", "int8", "int8:stochastic", "topk:0.1", "powersgd:1")
KEYS = {"1.0/matrix": (40, 24), "1.0/vector": (50,), "1.0/kernel": (8, 3, 3, 3)}
CUTS = {"whole": (), "cut": (1 / 3, 0.8)}  # where keys are cut, as parts of them: not between rows
ROUNDING = 2e-4


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Servers:
    """Servers without processes: commands are packed and unpacked on their way. `sent` counts the bytes of arrays."""

    def __init__(self, cuts: tuple[float, ...] = ()) -> None:
        self.states = [State() for _ in range(len(cuts) + 1)]
        self.sent = self._sequence = 0
        self._slices: dict[str, tuple[Slice, ...]] = {}
        for name, shape in KEYS.items():
            key = DenseKey(name, shape)
            ends = [0, *(int(key.units * cut) for cut in cuts), key.units]
            self._slices[name] = tuple(Slice(key, *ends[at : at + 2]) for at in range(len(ends) - 1))
        for post, state in enumerate(self.states):
            holdings = tuple(ops.Holding(parts[post], "add") for parts in self._slices.values())
            assert isinstance(self._change(state, ops.Declare, holdings=holdings), Done)

    def _change(self, state: State, kind: Callable[..., ops.Change], **fields: Any) -> Any:
        self._sequence += 1
        head, arrays = pack_command(kind(client="me", sequence=self._sequence, **fields))
        self.sent += sum(array.nbytes for array in arrays)
        return state.do(unpack_command(head, arrays))

    def slices(self, key: str) -> tuple[Slice, ...]:
        return self._slices[key]

    def stage(self, transaction: str, given: dict[str, Any]) -> None:
        for post, state in enumerate(self.states):
            updates = []
            for key, one in given.items():
                part = self._slices[key][post]
                if isinstance(one, Cut):
                    updates.append(one.updates[post])
                else:
                    updates.append(ops.Update(part.label, one.reshape(-1)[part.start : part.stop]))
            answer = self._change(state, ops.Stage, transaction=transaction, part=0, updates=tuple(updates))
            assert isinstance(answer, Done), answer

    def commit(self, transaction: str, divisor: float) -> None:
        for state in self.states:
            shaping = ops.Shaping(divisor)
            answer = self._change(state, ops.Commit, transaction=transaction, parts=(0,), rates=(1.0,), shaping=shaping)
            assert isinstance(answer, Committed), answer

    def drop(self, transaction: str) -> None:
        for state in self.states:
            self._change(state, ops.Drop, transaction=transaction)

    def held(self, key: str) -> Tensor:
        found = []
        for state, part in zip(self.states, self._slices[key], strict=True):
            answer = state.do(ops.Pull((ops.Wanted(part.label),)))
            assert isinstance(answer, Pulled)
            values = answer.found[0].values
            assert values is not None
            found.append(torch.from_numpy(values.copy()))
        return torch.cat(found).view(KEYS[key])


Step = tuple[int, float, str]
ENDS = ("commit", "discard", "lost", "lost, but committed", "saved")
STEPS = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([1.0, 3.0, 100.0]), st.sampled_from(ENDS)), min_size=1, max_size=15
)
HISTORY: list[Step] = [
    (1, 3.0, "commit"), (2, 3.0, "commit"), (3, 100.0, "discard"), (3, 100.0, "commit"), (4, 1.0, "lost"),
    (4, 1.0, "commit"), (5, 3.0, "lost, but committed"), (6, 3.0, "commit"), (7, 3.0, "saved"), (8, 1.0, "commit"),
]  # fmt: skip


def check_nothing_is_lost(spec: str, cut: str, steps: list[Step]) -> None:
    """Mean gradients: what servers hold, and what is left out, together are what was committed."""
    servers = Servers(CUTS[cut])
    coding = PushCoding(servers, spec, "cpu")  # type: ignore[arg-type]
    names = {key: (key.partition("/")[2], torch.empty(shape)) for key, shape in KEYS.items()}
    due = {key: torch.zeros(shape, dtype=torch.float64) for key, shape in KEYS.items()}
    for number, (seed, size, end) in enumerate(steps):
        transaction = f"1/{number}"
        tensors = {key: sample(shape, seed=seed) * size for key, shape in KEYS.items()}
        coding.begin(transaction)
        staged = {key: coding.encode(key, tensor, torch.float32, size) for key, tensor in tensors.items()}
        servers.stage(transaction, staged)
        before = {key: coding.residual(key) for key in KEYS}
        if end in ("discard", "lost"):
            servers.drop(transaction)
            coding.discard() if end == "discard" else coding.settle({"1/before"}, 1)
            for key, residual in before.items():
                assert torch.equal(coding.residual(key), residual), f"{spec}: what {key} had left out has changed"
            continue
        servers.commit(transaction, size)
        for key, tensor in tensors.items():
            due[key] += tensor.double() / size
        coding.settle({"1/before", transaction}, 1) if end == "lost, but committed" else coding.commit()
        if end == "saved":
            pieces = coding.pieces(names, SoloGroup())
            coding = PushCoding(servers, spec, "cpu")  # type: ignore[arg-type]
            coding.load_pieces(names, pieces)
    for key, total in due.items():
        missing = norm(total - servers.held(key) - coding.residual(key))
        assert missing <= ROUNDING * (1 + len(steps)), f"{spec}: {missing} of {key} is lost or was counted twice"


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(spec=st.sampled_from(SPECS), cut=st.sampled_from(tuple(CUTS)), steps=STEPS)
def test_nothing_is_lost_and_nothing_counts_twice(spec: str, cut: str, steps: list[Step]) -> None:
    check_nothing_is_lost(spec, cut, steps)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("cut", CUTS)
def test_nor_in_the_history_that_shows_faults(spec: str, cut: str) -> None:
    check_nothing_is_lost(spec, cut, HISTORY)


# ---- the check sees what it should


def forgets_when_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ErrorFeedback.discard

    def discard(self: ErrorFeedback) -> None:
        right(self)
        self._kept.clear()

    monkeypatch.setattr(ErrorFeedback, "discard", discard)


def keeps_what_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ErrorFeedback, "discard", ErrorFeedback.commit)


def does_not_ask_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what a worker has lost sight of was never committed: what it had left out before is sent again."""

    def settle(self: PushCoding, committed: Collection[str], workers: int) -> None:
        self.discard()

    monkeypatch.setattr(PushCoding, "settle", settle)


def takes_all_for_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: PushCoding, committed: Collection[str], workers: int) -> None:
        self.commit()

    monkeypatch.setattr(PushCoding, "settle", settle)


def begins_without_residuals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PushCoding, "load_pieces", lambda self, keys, pieces: None)


@pytest.mark.mutation
@pytest.mark.parametrize(
    "fault",
    [
        forgets_when_broken_off,
        keeps_what_was_broken_off,
        does_not_ask_the_servers,
        takes_all_for_committed,
        begins_without_residuals,
    ],
)
def test_a_residual_that_is_lost_or_counted_twice_is_seen(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=r"lost or was counted twice|has changed"):
        check_nothing_is_lost("topk:0.1", "cut", HISTORY)


# ---- what travels


def test_less_is_sent() -> None:
    sent = {}
    for spec in ("none", *SPECS):
        servers = Servers(CUTS["cut"])
        coding = PushCoding(servers, spec, "cpu")  # type: ignore[arg-type]
        coding.begin("1/1")
        given = {key: coding.encode(key, sample(shape), torch.float32) for key, shape in KEYS.items()}
        servers.stage("1/1", given)
        sent[spec] = servers.sent
    assert sent["none"] == 4 * sum(map(prod, KEYS.values()))
    assert sent["bf16"] == sent["fp16"] == sent["none"] / 2
    assert sent["int8"] < 0.3 * sent["none"]
    assert sent["topk:0.1"] < 0.25 * sent["none"]
    assert sent["powersgd:1"] < 0.4 * sent["none"]  # thin slices of small matrices


@pytest.mark.parametrize(("start", "stop", "shape", "at"), [
    (0, 960, (40, 24), 0), (0, 320, (14, 24), 0), (320, 768, (19, 24), 8), (768, 960, (8, 24), 0), (30, 40, (1, 24), 6),
])  # fmt: skip
def test_a_slice_is_framed_by_the_rows_it_touches(start: int, stop: int, shape: tuple[int, int], at: int) -> None:
    part = Slice(DenseKey("m", (40, 24)), start, stop)
    assert frame(part, by_parameter=True) == (shape, at)
    assert frame(part, by_parameter=False) == ((stop - start,), 0)
    flat = torch.arange(1.0, 1 + stop - start)
    whole = framed(flat, shape, at).view(-1)
    assert torch.equal(whole[at : at + len(flat)], flat)
    assert float(whole.sum()) == float(flat.sum())


def test_what_codecs_do_not_take_travels_as_it_is() -> None:
    coding = PushCoding(Servers(), "int8", "cpu")  # type: ignore[arg-type]
    coding.begin("1/1")
    given = sample((50,)).to(torch.float16)
    found = coding.encode("1.0/vector", given, torch.float16)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float16


def test_it_says_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"comm\.codec='zip' is not a codec"):
        PushCoding(Servers(), "zip", "cpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="works in host memory"):
        PushCoding(Servers(), "int8", "cuda:0")  # type: ignore[arg-type]
    key = DenseKey("m", (4,))
    with pytest.raises(UserError, match="is cut into"):
        check_cut(Declaration(key), Cut((ops.Update("m[0:2]", np.zeros(2)),)), ["m[0:4]"])


# ---- a server believes nothing


def coded_update(**changed: Any) -> ops.Update:
    payload = codec_named("topk:0.5").encode("", torch.arange(8.0)).numpy()
    fields: dict[str, Any] = {"codec": "topk:0.5", "shape": (8,), "dtype": "float32", "start": 0, "stop": 8} | changed
    values = fields.pop("values", payload)
    return ops.Update("w[0:8]", values, fields.pop("rows", None), ops.Coding(**fields))


def arrive(update: ops.Update) -> ops.Operation:
    head, arrays = pack_command(ops.Push((update,), client="me", sequence=1))
    found = unpack_command(head, arrays)
    assert isinstance(found, ops.Push)
    return found


def test_what_arrives_is_decoded_once() -> None:
    found = arrive(coded_update(start=4, stop=8))
    assert isinstance(found, ops.Push)
    assert found.updates[0].coding is None
    assert found.updates[0].values.tolist() == [4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize("changed", [
    {"codec": "zip"}, {"codec": "bf16"}, {"shape": (9, 9)}, {"shape": (-8,)}, {"shape": (-2, -4)}, {"dtype": "int32"},
    {"start": -1}, {"stop": 9}, {"start": 5, "stop": 4}, {"rows": np.arange(8)}, {"values": np.zeros(8)},
    {"values": np.full(32, 255, np.uint8)}, {"values": np.zeros(3, np.uint8)}, {"shape": "8"}, {"codec": 8},
])  # fmt: skip
def test_what_no_codec_has_made_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(PackingError):
        arrive(coded_update(**changed))


def test_a_shard_takes_nothing_that_is_coded() -> None:
    state = State()
    holding = ops.Holding(Slice(SparseKey("w", 8, ()), 0, 8), "add")
    state.do(ops.Declare((holding,), client="me", sequence=1))
    answer = state.do(ops.Push((coded_update(),), client="me", sequence=2))
    assert "has not been decoded" in str(answer)


# ---- auto


class TimedServers(Servers):
    """Servers behind a link of so many bytes a second, on a clock of their own."""

    def __init__(self, bandwidth: float, clock: list[float]) -> None:
        super().__init__()
        self._bandwidth, self._clock = bandwidth, clock

    def progress(self) -> None:
        self._clock[0] += 0.001

    def stage(self, transaction: str, given: Any, load: Any = None) -> Any:
        self._clock[0] += sum(array.nbytes for array in (load or {}).values()) / self._bandwidth
        return self

    def wait(self, sent: Any) -> None:
        pass

    def drop(self, transaction: str) -> None:
        pass


@pytest.mark.parametrize(("bandwidth", "coded"), [(1e4, True), (1e12, False)])
def test_auto_looks_at_the_first_pushes_and_picks(
    monkeypatch: pytest.MonkeyPatch, bandwidth: float, coded: bool
) -> None:
    clock = [0.0]
    monkeypatch.setattr("shoal.strategies.push_choice.time.perf_counter", lambda: clock[0])
    servers = TimedServers(bandwidth, clock)
    coding = PushCoding(servers, "auto", "cpu")  # type: ignore[arg-type]
    coding.load({"1.0/matrix": torch.ones(40, 24)})
    size = 4 * sum(map(prod, KEYS.values()))
    for step in range(8):
        coding.begin(f"1/{step}")
        given = [coding.encode(key, sample(shape), torch.float32) for key, shape in KEYS.items()]
        assert any(isinstance(one, Cut) for one in given) == (coded and step >= 6)
        assert (coding.choice is not None) == (step >= 6)
        clock[0] += 0.01 + size / bandwidth
        coding.commit(size / bandwidth)
        left = coding.residual("1.0/matrix")
        assert norm(left - 1.0) == 0 if step < 6 or not coded else norm(left - 1.0) > 0
    assert coding.choice is not None
    assert (coding.choice.name != "none") == coded


def test_a_change_of_members_is_no_step() -> None:
    choice = PushChoice(Servers())  # type: ignore[arg-type]
    for _ in range(20):
        choice.note(0.1)
        choice.meet(2)
    assert not choice.due
