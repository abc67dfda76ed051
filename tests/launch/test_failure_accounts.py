"""Accounts of failures: classified, with the user's frames, gathered and rendered."""

from __future__ import annotations

import pytest

from shoal.core.errors import (
    CheckpointError,
    CollectiveTimeout,
    ConfigError,
    DiskError,
    NonFiniteLoss,
    PeerLost,
    RunDirError,
    ShoalError,
)
from shoal.launch.failure import Account, Casualty, account_of, account_of_end, causes, may_go_on, render
from shoal.launch.frames import user_traceback

pytestmark = pytest.mark.unit


def raised(source: str, name: str = "user.py") -> BaseException:
    try:
        exec(compile(source, name, "exec"), {})
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (ConfigError("no"), "user", 2),
        (RunDirError("no"), "user", 2),
        (DiskError("no"), "disk", 2),
        (ShoalError("no"), "exception", 1),
        (PeerLost("gone"), "peer", 1),
        (CollectiveTimeout("sum", [1], 2.0), "peer", 1),
        (SystemExit(4), "exit", 4),
        (SystemExit("words"), "exit", 1),
        (SystemExit(256), "exit", 1),
        (KeyboardInterrupt(), "exception", 1),
        (ValueError("no"), "exception", 1),
    ],
)
def test_kinds_and_statuses(error: BaseException, kind: str, status: int) -> None:
    account = account_of(error)
    assert account is not None
    assert (account.kind, account.status) == (kind, status)
    assert Account.from_message(account.to_message()) == account


@pytest.mark.parametrize("code", [None, 0])
def test_a_good_exit_is_no_failure(code: int | None) -> None:
    assert account_of(SystemExit(code)) is None


def test_frames_of_torch_and_of_ours_are_left_out() -> None:
    source = "import torch\ndef f(x):\n    raise ValueError('bad')\nm = torch.nn.Module()\nm.forward = f\nm(1)"
    text = user_traceback(raised(source))
    assert text.count('File "user.py"') == 2
    assert "nn/modules" not in text
    assert not text.startswith("Traceback")
    assert text.endswith("ValueError: bad")


def test_an_error_within_torch_ends_at_the_users_line() -> None:
    text = user_traceback(raised("import torch\ntorch.nn.Linear(2, 2)(torch.ones(3, 3))"))
    assert 'File "user.py", line 2' in text
    assert "functional.py" not in text
    assert "RuntimeError: mat1 and mat2" in text


def test_all_frames_are_shown_where_none_are_the_users() -> None:
    with pytest.raises(TypeError) as caught:
        account_of_end("x")  # type: ignore[arg-type]
    error = caught.value
    assert error.__traceback__ is not None
    assert "failure.py" in user_traceback(error.with_traceback(error.__traceback__.tb_next))


def test_groups_are_filtered_too() -> None:
    source = "raise ExceptionGroup('many', [ValueError('one'), KeyError('two')])"
    text = user_traceback(raised(source))
    assert "ValueError: one" in text
    assert "KeyError: 'two'" in text


def casualty(rank: int, kind: str, message: str = "m", phase: str = "forward") -> Casualty:
    return Casualty(rank, Account(kind, message, message), 3, phase)  # type: ignore[arg-type]


def test_only_causes_are_shown() -> None:
    by_rank = {0: casualty(0, "peer"), 1: casualty(1, "signal"), 2: casualty(2, "peer")}
    assert [one.rank for one in causes(by_rank)] == [1]
    assert [one.rank for one in causes({0: by_rank[0], 2: by_rank[2]})] == [0, 2]


def test_different_failures_are_shown_each_and_equal_ones_once() -> None:
    by_rank = {0: casualty(0, "exception", "A"), 1: casualty(1, "exception", "B"), 2: casualty(2, "exception", "A")}
    text = render(by_rank, 3, "here", {})
    assert text == (
        "shoal: worker 0 (and 1 other) of 3 on here failed at step 3 (forward)\n\nA\n\n"
        "shoal: worker 1 of 3 on here failed at step 3 (forward)\n\nB"
    )


def test_a_signal_names_the_host_and_the_last_output() -> None:
    one = Casualty(1, account_of_end(-9), 7, "reduce")
    text = render({1: one}, 2, "host-b", {1: "its last output:\n  hm"})
    assert text.startswith("shoal: worker 1 of 2 on host-b failed at step 7 (reduce)\n\nkilled by signal 9 (SIGKILL).")
    assert text.endswith("its last output:\n  hm")


def test_a_full_disk_names_who_wrote_but_a_mistake_names_nobody() -> None:
    full = casualty(0, "disk", "no space left", "save")
    assert render({0: full}, 2, "here", {}) == "shoal: worker 0 of 2 on here failed at step 3 (save)\n\nno space left"
    assert render({0: casualty(0, "user", "no")}, 2, "here", {}) == "shoal: error: no"


def test_an_unknown_signal_has_a_number() -> None:
    assert account_of_end(-63).cause == "killed by signal 63"


def test_a_replacement_that_never_took_part_is_not_one_of_the_workers() -> None:
    """Its number is larger than there are workers."""
    killed = Casualty(7, account_of_end(-9), 0, "start", size=4)
    text = render({7: killed}, 4, "here", {})
    assert text.startswith("shoal: worker 7, a replacement, on here failed before its first step")
    assert "7 of 4" not in text


@pytest.mark.parametrize(
    ("error", "step", "phase", "expected"),
    [
        (ConfigError("no such setting"), 3, "forward", False),
        (NonFiniteLoss(3, [0]), 3, "forward", False),
        (CheckpointError("does not fit"), 0, "meet", False),
        (DiskError("no space left"), 3, "save", True),
        (ShoalError("the servers have lost the model"), 3, "update", True),
        (ValueError("a bad sample"), 3, "data", True),
        (ValueError("a bad shape"), 0, "start", False),
        (RuntimeError("the size of tensor a must match"), 0, "meet", False),
        (SystemExit(3), 0, "start", False),
        (None, 0, "start", True),  # it was killed
        (None, 3, "forward", True),
    ],
)
def test_to_go_on_is_offered_only_where_it_may_help(
    error: BaseException | None, step: int, phase: str, expected: bool
) -> None:
    account = account_of(error) if error is not None else account_of_end(-9)
    assert account is not None
    told = Account.from_message(account.to_message())  # as the launcher hears it
    peer = Casualty(1, Account("peer", "gone", "gone"), step, phase)
    assert may_go_on({0: Casualty(0, told, step, phase), 1: peer}) is expected
