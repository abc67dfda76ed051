"""The loader: the order of the run, the same bits from any number of processes, and nothing left behind."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from shoal.core.errors import ShoalError
from shoal.core.order import epoch_order
from shoal.data import open_source
from shoal.data.loader import Loaded, Loader, Request
from shoal.data.processes import TRIES

SAMPLES = 23


class Noisy(Dataset[Any]):
    """Draws from all three generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(3).double() * random.random() * float(np.random.random())
        return {"sample": index, "drawn": [drawn, torch.get_num_threads()]}


class Troubled(Dataset[Any]):
    """Misbehaves at sample 9, as told."""

    def __init__(self, trouble: str) -> None:
        self.trouble = trouble

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if index == 9:
            if self.trouble == "raise":
                raise FileNotFoundError(2, "no such file", "nine.jpeg")
            if self.trouble == "raise what cannot be sent":
                raise type("Local", (ValueError,), {})("nine is bad")
            if self.trouble == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "hang":
                threading.Event().wait()
        return index


class Collated(Noisy):
    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def collate(self, samples: list[Any]) -> Any:
        return self.batch


def requests(*epochs: int, size: int = 4) -> list[Request]:
    return [Request(epoch, start, min(start + size, SAMPLES)) for epoch in epochs for start in range(0, SAMPLES, size)]


def bits(loaded: Loaded) -> tuple[Any, ...]:
    drawn, _ = loaded.batch["drawn"]
    return loaded.request, loaded.indices.tolist(), loaded.batch["sample"].tolist(), drawn.numpy().tobytes()


def loader(
    dataset: Dataset[Any] | None = None,
    processes: int = 0,
    timeout_s: float = 60,
    tell: Callable[[str], None] = lambda words: None,
) -> Loader:
    source = open_source(Noisy() if dataset is None else dataset, "train")
    return Loader(source, seed=11, processes=processes, timeout_s=timeout_s, tell=tell)


@pytest.mark.unit
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_is_that_of_the_run(shuffle: bool) -> None:
    source = open_source(torch.arange(SAMPLES) * 10, "train")
    for epoch in (0, 1):
        order = epoch_order(3, epoch, SAMPLES, shuffle)
        loads = list(Loader(source, 3, shuffle).stream(requests(epoch)))
        assert np.concatenate([loaded.indices for loaded in loads]).tolist() == order.tolist()
        assert torch.cat([loaded.batch for loaded in loads]).tolist() == (order * 10).tolist()


@pytest.mark.unit
def test_in_this_process_requests_are_drawn_one_at_a_time() -> None:
    asked = iter(requests(0))
    stream = loader().stream(asked)
    assert next(stream).request == Request(0, 0, 4)
    assert next(asked) == Request(0, 4, 8)


@pytest.mark.ranks
@pytest.mark.parametrize("processes", [1, 2])
def test_loader_processes_give_the_same_bits(processes: int) -> None:
    inline = [bits(loaded) for loaded in loader().stream(requests(0, 1))]
    theirs = [bits(loaded) for loaded in loader(processes=processes).stream(requests(0, 1))]
    assert theirs == inline
    # other cuts of the same epoch give the same samples
    parts = [loaded.batch["drawn"][0] for loaded in loader(processes=processes).stream(requests(1, size=7))]
    whole = loader().load(Request(1, 0, SAMPLES)).batch["drawn"][0]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.ranks
def test_loader_processes_leave_the_generators_alone() -> None:
    def state() -> tuple[Any, ...]:
        numpy: Any = np.random.get_state(legacy=True)
        return torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2]

    before = state()
    list(loader(processes=1).stream(requests(0)))
    assert state() == before


@pytest.mark.ranks
def test_loader_processes_draw_requests_only_a_little_ahead() -> None:
    drawn: list[Request] = []

    def endless() -> Iterator[Request]:
        for epoch in itertools.count():
            for request in requests(epoch):
                drawn.append(request)
                yield request

    stream = loader(processes=1).stream(endless())
    for number in range(1, 10):
        next(stream)
        assert len(drawn) <= number + 2
    stream.close()


@pytest.mark.ranks
@pytest.mark.parametrize("how", ["close the stream", "close the loader", "drop it", "use it up"])
def test_the_processes_end_with_the_stream(how: str) -> None:
    ours = loader(processes=2)
    stream = ours.stream(requests(0, 1))
    next(stream)
    assert len(multiprocessing.active_children()) == 2
    if how == "close the stream":
        stream.close()
    elif how == "close the loader":
        ours.close()
        assert list(stream) == []
        ours.close()
    elif how == "use it up":
        assert len(list(stream)) == len(requests(0, 1)) - 1
    del stream
    assert multiprocessing.active_children() == []


@pytest.mark.ranks
def test_streams_may_overlap() -> None:
    ours = loader(processes=1)
    first, second = ours.stream(requests(0)), ours.stream(requests(1))
    pairs = list(zip(first, second, strict=True))
    assert [(a.request, b.request) for a, b in pairs] == list(zip(requests(0), requests(1), strict=True))


@pytest.mark.ranks
@pytest.mark.parametrize("processes", [0, 1])
def test_an_error_of_the_dataset_arrives_as_it_was(processes: int) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        list(loader(Troubled("raise"), processes).stream(requests(0)))
    assert caught.value.filename == "nine.jpeg"
    assert caught.value.__notes__[0] == "while reading sample 9 of the train data"
    if processes:
        assert "test_data_loader.py" in caught.value.__notes__[1]  # where in the dataset it happened
    assert multiprocessing.active_children() == []


@pytest.mark.ranks
def test_an_error_that_cannot_be_sent_is_still_told() -> None:
    with pytest.raises(RuntimeError, match="Local: nine is bad") as caught:
        list(loader(Troubled("raise what cannot be sent"), 1).stream(requests(0)))
    assert caught.value.__notes__[0] == "while reading sample 9 of the train data"


@pytest.mark.ranks
def test_a_batch_that_cannot_be_sent_is_refused_instead_of_waited_for() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        list(loader(Collated({"samples": [lambda: None]}), 1).stream(requests(0)))


@pytest.mark.ranks
def test_batches_of_any_kind_arrive_whole() -> None:
    batch: dict[str, Any] = {
        "half": torch.randn(3, 5).bfloat16(),
        "turned": torch.randn(4, 300, 300).transpose(0, 2),  # larger than what a socket holds
        "nested": [(torch.tensor(True), torch.zeros(0, 2)), "text", None, np.arange(3)],
        "sparse": torch.eye(3).to_sparse(),
    }
    received = next(loader(Collated(batch), 1).stream(requests(0))).batch
    assert list(received) == list(batch)
    for name in ("half", "turned"):
        assert torch.equal(received[name], batch[name])
        assert received[name].dtype == batch[name].dtype
    (flag, nothing), text, none, array = received["nested"]
    assert flag.item() is True
    assert nothing.shape == (0, 2)
    assert (text, none, array.tolist()) == ("text", None, [0, 1, 2])
    assert torch.equal(received["sparse"].to_dense(), torch.eye(3))


@pytest.mark.ranks
def test_samples_that_kill_every_process_end_the_stream_and_are_named() -> None:
    begin = time.monotonic()
    told: list[str] = []
    troubled = loader(Troubled("die"), 1, tell=told.append)
    asked = requests(0)
    fatal = next(request for request in asked if 9 in troubled.indices(request))
    numbers = ", ".join(map(str, troubled.indices(fatal).tolist()))
    with pytest.raises(ShoalError) as raised:
        list(troubled.stream(asked))
    said = str(raised.value)
    assert f"killed by signal 9, and so did 2 before it while it loaded samples {numbers} of epoch 1." in said
    assert "loader.processes=0" in said
    assert len(told) == TRIES - 1
    assert all(f"while it loaded samples {numbers} of epoch 1: another takes its place" in line for line in told)
    assert time.monotonic() - begin < 50  # and not after timeout_s


@pytest.mark.ranks
@pytest.mark.parametrize("processes", [1, 3])
def test_loader_processes_that_are_killed_are_replaced_and_the_samples_are_the_same(processes: int) -> None:
    told: list[str] = []
    calm = [bits(one) for one in loader().stream(requests(0, 1))]
    stream = loader(processes=processes, tell=told.append).stream(requests(0, 1))
    hurt, killed = [], 0
    for number, one in enumerate(stream):
        hurt.append(bits(one))
        if number in (0, 1, 4):  # all of them: what they have read ahead, and what they were asked
            for child in multiprocessing.active_children():
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
                killed += 1
    assert hurt == calm
    assert 1 <= len(told) <= killed  # who had answered all that it was asked is not missed
    assert all("was killed by signal 9 while it loaded sample" in line for line in told)
    assert not multiprocessing.active_children()


@pytest.mark.ranks
def test_what_was_fetched_is_not_counted_again_by_a_process_that_takes_anothers_place() -> None:
    class Counted(type(open_source(Noisy(), "train"))):  # type: ignore[misc]
        fetched, of = 0, 0

        @property
        def bytes_read(self) -> int:
            return (self.fetched if self.of == os.getpid() else 0) + self.read_elsewhere

        def fetch(self, indices: Any, epoch: int, seed: int) -> Any:
            if self.of != os.getpid():
                self.fetched, self.of = 0, os.getpid()
            self.fetched += 100
            return super().fetch(indices, epoch, seed)

    source = open_source(Noisy(), "train")
    source.__class__ = Counted
    for epoch in (0, 1):
        stream = Loader(source, seed=11, processes=1, timeout_s=60).stream(requests(epoch))
        next(stream)
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        list(stream)
        assert source.bytes_read == 100 * len(requests(0)) * (epoch + 1)


@pytest.mark.ranks
def test_a_loader_process_that_hangs_is_given_up() -> None:
    with pytest.raises(ShoalError, match="was silent for 1 s"):
        list(loader(Troubled("hang"), 2, timeout_s=1).stream(requests(0)))


@pytest.mark.ranks
def test_an_interrupt_from_the_keyboard_does_not_reach_them() -> None:
    stream = loader(processes=2).stream(requests(0, 1, 2))
    loaded = [next(stream)]
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
    loaded += stream
    assert [one.request for one in loaded] == requests(0, 1, 2)


PARENT = """
import multiprocessing, threading, torch
from torch.utils.data import Dataset
from shoal.data import open_source
from shoal.data.loader import Loader, Request

class Multiplied(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if {stuck} and index > 0:
            threading.Event().wait()
        big = torch.rand(300, 300)
        return (big @ big).exp().sum(), torch.get_num_threads()

# the threads of OpenMP are running when the loader processes are forked
torch.set_num_threads(2)
(torch.rand(600, 600) @ torch.rand(600, 600)).exp().sum()
torch.rand(10_000_000).exp_().sum()
loader = Loader(open_source(Multiplied(), "train"), 0, shuffle=False, processes=2)
stream = loader.stream(Request(0, at, at + 1) for at in range(8))
threads = [int(next(stream).batch[1])] if {stuck} else [int(loaded.batch[1]) for loaded in stream]
print(max(threads), *(child.pid for child in multiprocessing.active_children()), flush=True)
input()
"""


@pytest.mark.ranks
def test_they_can_be_forked_from_a_process_that_has_used_many_threads() -> None:
    command = [sys.executable, "-c", PARENT.replace("{stuck}", "False")]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1"]


@pytest.mark.ranks
def test_they_end_with_their_parent_even_in_the_middle_of_a_read() -> None:
    command = [sys.executable, "-c", PARENT.replace("{stuck}", "True")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        line = parent.stdout.readline().split()
        children = [int(pid) for pid in line[1:]]
        watched = [os.pidfd_open(pid) for pid in children]
        assert len(watched) == 2
        parent.kill()
    outlived = [child for child in watched if not select.select([child], [], [], 5.0)[0]]
    for child in outlived:
        signal.pidfd_send_signal(child, signal.SIGKILL)
    for child in watched:
        os.close(child)
    assert not outlived, "a loader process has outlived its parent"
