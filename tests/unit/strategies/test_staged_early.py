"""Gradients go to the servers while backward still runs, in parts that add up to the whole; nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.comm.control import ControlPage
from shoal.comm.solo import SoloGroup
from shoal.core.cursor import Batches, Cursor
from shoal.core.errors import ConfigError
from shoal.core.order import epoch_order
from shoal.core.world import Member, View, World
from shoal.store.checking import Rows
from shoal.store.errors import StateLost
from shoal.store.operations import Era
from shoal.strategies import served_model
from shoal.strategies.base import Pass, Runtime, Work
from shoal.strategies.objective import make_objective
from shoal.strategies.program import Program
from shoal.strategies.served import ServedReplica

SAMPLES = 12
Events = list[str]


class FakeStore:
    """Notes what is staged. `answer` says what becomes of it: a future that is done, by default."""

    bytes_sent, deadline_s = 0, 60.0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.events: Events = []
        self.parts: dict[int, dict[str, Any]] = {}
        self.futures: list[Future[None]] = []
        self.answer = self._done

    def _done(self) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def stage(self, transaction: str, part: int, given: dict[str, Any]) -> Future[None]:
        self.events.append(f"stage {part}")
        assert part not in self.parts, "a part was staged twice"
        self.parts[part] = {name: np.array(value) for name, value in given.items()}
        self.futures.append(self.answer())
        return self.futures[-1]

    def wait(self, future: Future[Any]) -> Any:
        return future.result(60)

    def set_many(self, values: dict[str, Any]) -> Future[None]:
        return self._done()

    def refresh(self, *_: Any, **__: Any) -> Future[dict[int, int]]:
        future: Future[dict[int, int]] = Future()
        future.set_result({})
        return future

    def register(self, declarations: Any) -> None: ...

    def set_updater_state(self, name: str, state: Any) -> None: ...

    def settle(self, abandoned: Any) -> None: ...

    def progress(self) -> Any:
        return SimpleNamespace(clocks={})

    def records(self, **_: Any) -> list[Any]:
        return []

    def eras(self) -> dict[str, int]:
        return {"1.0": 1}

    def renew(self, run: str, above: int) -> Era:
        return Era(run, 1)

    def close(self) -> None: ...


class Layers(nn.Module):
    """Says when backward comes to its first layer, which is the last that it computes."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 32), nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
        self._events = events

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.first(x)
        hidden.register_hook(lambda grad: self._events.append("first layer"))  # type: ignore[no-untyped-call]
        output: Tensor = self.rest(hidden)
        return output


@pytest.fixture
def control() -> Iterator[ControlPage]:
    page = ControlPage()
    yield page
    page.close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    fake = FakeStore()
    monkeypatch.setattr(served_model, "KVStore", lambda *args, **how: fake)
    return fake


def replica_of(
    store: FakeStore, control: ControlPage, bucket_bytes: int, exact: bool = False, model: nn.Module | None = None
) -> ServedReplica:
    view = View(1, (Member("worker", 0, "host", 1, key="a", agent="host"),))
    fleet: Any = SimpleNamespace(number=1, keys=None)
    runtime = Runtime(
        World(), view, SoloGroup(), control, seed=0, fleet=fleet, bucket_bytes=bucket_bytes, exact_sums=exact
    )
    torch.manual_seed(0)
    program = Program(
        model or Layers(store.events),
        make_objective(nn.CrossEntropyLoss()),
        lambda params: torch.optim.SGD(params, lr=0.1),
    )
    return ServedReplica(program, runtime)


def work() -> Work:
    """Two passes."""
    batch, order = Batches(SAMPLES, SAMPLES, 6).at(Cursor()), epoch_order(0, 0, SAMPLES)
    torch.manual_seed(1)
    data = torch.randn(SAMPLES, 4), torch.randint(3, (SAMPLES,))
    passes = [
        Pass((grain,), order[grain.start : grain.stop], tuple(t[grain.start : grain.stop] for t in data))
        for grain in batch.grains
    ]
    return Work(batch, passes, (0.1,))


def do(replica: ServedReplica) -> None:
    replica.begin("1/step")
    given = work()
    replica.sum_up(replica.compute(given, before_last=replica.arm), given)
    replica.stage_rest()


def test_staging_begins_before_backward_ends(store: FakeStore, control: ControlPage) -> None:
    replica = replica_of(store, control, bucket_bytes=512)
    do(replica)
    last = len(store.parts) - 1
    assert last > 0
    assert store.events.index("stage 0") > store.events.index("first layer"), "the first pass stages nothing"
    assert store.events.index("stage 0") < len(store.events) - 1 - store.events[::-1].index("first layer")
    assert store.events[-1] == f"stage {last}", "what waits for all of backward comes last"
    assert list(replica.parts) == sorted(store.parts)


@pytest.mark.parametrize("exact", [False, True])
def test_the_parts_are_the_whole_in_the_same_bits(store: FakeStore, control: ControlPage, exact: bool) -> None:
    do(replica_of(store, control, bucket_bytes=512, exact=exact))
    cut, store.parts = store.parts, {}
    store.events.clear()
    do(replica_of(store, control, bucket_bytes=1 << 20, exact=exact))
    assert store.parts.keys() == {0}, "a small model goes in one message"
    assert len(cut) > 2
    joined = {name: value for part in cut.values() for name, value in part.items()}
    assert sum(map(len, cut.values())) == len(joined), "a key is in two parts"
    assert joined.keys() == store.parts[0].keys()
    for name, value in joined.items():
        assert value.dtype == (np.float64 if exact else np.float32)
        assert value.tobytes() == store.parts[0][name].tobytes()


class OnlyTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(50, 3, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.table((x * 10).long().abs() % 50)
        return logits


def test_a_model_of_tables_only_has_one_part(store: FakeStore, control: ControlPage) -> None:
    do(replica_of(store, control, bucket_bytes=512, model=OnlyTables()))
    ((name, rows),) = store.parts[0].items()
    assert name.endswith("table.weight")
    assert isinstance(rows.item(), Rows)
    assert store.parts.keys() == {0}


def test_what_is_lost_within_backward_is_noted_and_not_raised(store: FakeStore, control: ControlPage) -> None:
    replica = replica_of(store, control, bucket_bytes=512)

    def lost() -> Future[None]:
        raise StateLost(2)

    store.answer = lost
    do(replica)
    assert replica.lost
    assert store.events.count("stage 0") == len([e for e in store.events if e.startswith("stage")]) == 1


def test_a_key_that_was_never_known_is_an_error(store: FakeStore, control: ControlPage) -> None:
    replica = replica_of(store, control, bucket_bytes=512)

    def unknown() -> Future[None]:
        raise ConfigError("there is no such key")

    store.answer = unknown
    with pytest.raises(ConfigError, match="no such key"):
        do(replica)


def test_a_step_that_is_broken_off_waits_for_what_is_under_way(store: FakeStore, control: ControlPage) -> None:
    """Its memory is used by the next step."""
    replica = replica_of(store, control, bucket_bytes=512)
    late: list[Future[None]] = []

    def answer() -> Future[None]:
        late.append(Future())
        return late[-1]

    store.answer = answer
    replica.begin("1/step")
    replica.compute(work(), before_last=replica.arm)
    assert late, "something is under way"
    begun, done = threading.Event(), threading.Event()

    def discard() -> None:
        begun.set()
        replica.discard()
        done.set()

    thread = threading.Thread(target=discard)
    thread.start()
    assert begun.wait(60)
    for future in late:
        assert not done.is_set()
        future.set_result(None)
    thread.join(60)
    assert done.is_set()
    assert not replica._under_way


def test_hooks_are_taken_off(store: FakeStore, control: ControlPage) -> None:
    replica = replica_of(store, control, bucket_bytes=512)
    replica.close()
    replica.close()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in replica.module.parameters())
