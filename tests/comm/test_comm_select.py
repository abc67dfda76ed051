"""Which backend is chosen, and what cannot be chosen."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from torch._C._distributed_c10d import Store

from shoal.comm import rendezvous
from shoal.comm.control import ControlPage
from shoal.comm.select import choose_backend, make_group, refuse_unencrypted
from shoal.comm.shm import ShmGroup
from shoal.comm.solo import SoloGroup
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.world import Member, View

pytestmark = pytest.mark.unit


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")


def test_processors_of_one_host_share_memory() -> None:
    name, reason = choose_backend("auto", "cpu")
    assert name == "shm"
    assert "memory" in reason


@pytest.mark.usefixtures("arm")
def test_without_total_store_order_gloo_is_chosen_and_the_reason_shown() -> None:
    name, reason = choose_backend("auto", "cpu")
    assert name == "gloo"
    assert "aarch64" in reason


@pytest.mark.usefixtures("arm")
def test_shared_memory_is_refused_without_total_store_order() -> None:
    with pytest.raises(ConfigError, match=r"comm\.backend=shm.*aarch64.*auto"):
        choose_backend("shm", "cpu")
    control = ControlPage()
    with pytest.raises(ConfigError, match="aarch64"):
        ShmGroup(view_of("host"), view_of("host").members[0], control, 1.0)
    control.close()


@pytest.mark.parametrize(
    ("requested", "device", "reason"),
    [
        ("nccl", "cpu", "CUDA"),
        ("shm", "cuda", "CUDA"),
        ("glo", "cpu", "did you mean 'gloo'"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(requested: str, device: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        choose_backend(requested, device)


def test_what_works_is_taken_as_requested() -> None:
    assert [choose_backend(name, "cpu")[0] for name in ("shm", "gloo")] == ["shm", "gloo"]


def view_of(*agents: str, number: int = 1) -> View:
    """A view with a member on each of these hosts."""
    return View(
        number, tuple(Member("worker", rank, agent, 1, str(rank), agent, rank) for rank, agent in enumerate(agents))
    )


def no_store() -> Store:
    raise AssertionError("no store is needed")


def test_a_worker_alone_needs_no_backend() -> None:
    control = ControlPage()
    assert isinstance(make_group(view_of("a"), "0", control, "auto", no_store, 1.0), SoloGroup)
    control.close()


def test_workers_of_one_host_share_memory_and_need_no_store() -> None:
    control = ControlPage()
    group = make_group(view_of("a", "a"), "1", control, "auto", no_store, 1.0)
    assert (group.backend, group.rank, group.size) == ("shm", 1, 2)
    group.close()
    control.close()


def test_shared_memory_between_hosts_is_refused_and_the_hosts_are_named() -> None:
    control = ControlPage()
    with pytest.raises(ConfigError, match=r"comm\.backend=shm.*red, blue.*auto"):
        make_group(view_of("red", "blue", "red"), "0", control, "shm", no_store, 1.0)
    control.close()
    name, reason = choose_backend("auto", "cpu", ("red", "blue"))
    assert name == "gloo"
    assert "red, blue" in reason


def test_who_insists_on_encryption_gets_no_run_between_hosts() -> None:
    with pytest.raises(ConfigError, match=r"comm\.encrypt=on.*gloo.*comm\.encrypt=auto.*without --listen"):
        refuse_unencrypted("on", between_hosts=True)
    refuse_unencrypted("on", between_hosts=False)
    for encrypt in ("auto", "off"):
        refuse_unencrypted(encrypt, between_hosts=True)


def test_a_stranger_gets_no_group() -> None:
    control = ControlPage()
    with pytest.raises(ShoalError, match="no member of view 3"):
        make_group(view_of("a", "a", number=3), "7", control, "auto", no_store, 1.0)
    control.close()


def test_the_launcher_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv[0] = 'bin/shoal'\n"
        "from shoal.comm import rendezvous, select, control\n"
        "place = rendezvous.make_rendezvous(); select.choose_backend('auto', 'cpu')\n"
        "rendezvous.remove_rendezvous(place); assert 'torch' not in sys.modules"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)


def test_a_store_keeps_groups_apart_and_is_removed() -> None:
    place = rendezvous.make_rendezvous()
    rendezvous.open_store(place, "a", 2, 1.0).set("key", "of a")
    assert rendezvous.open_store(place, "a", 2, 1.0).get("key") == b"of a"
    assert not rendezvous.open_store(place, "b", 2, 1.0).check(["key"])
    rendezvous.remove_rendezvous(place)
    assert not Path(place).exists()
