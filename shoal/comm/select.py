"""Which backend a run uses, and the group it makes. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.comm.shm_segment import give_back_older, unsupported
from shoal.core.errors import ConfigError, ShoalError, nearest
from shoal.core.world import Member, View

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from shoal.comm.control import ControlPage
    from shoal.comm.group import Group

BACKENDS = ("auto", "shm", "gloo", "nccl")


def choose_backend(requested: str, device: str, hosts: Sequence[str] = ()) -> tuple[str, str]:
    """The backend for workers that compute on `device`, and why, as shown in the run's header. `hosts`: where they are,
    if they do not share the memory of one.

    Raises `ConfigError` where the requested one cannot work.
    """
    if requested not in BACKENDS:
        raise ConfigError(f"comm.backend={requested!r} is not a backend: {nearest(requested, BACKENDS)}")
    on_cuda = device.startswith("cuda")
    if requested == "auto":
        if on_cuda:
            obstacle = _nccl_obstacle()
            return ("gloo", f"no NCCL: {obstacle}") if obstacle else ("nccl", "workers compute on CUDA devices")
        obstacle = _apart(hosts) or unsupported()
        return (
            ("gloo", f"no shared memory: {obstacle}") if obstacle else ("shm", "all workers share this host's memory")
        )
    if requested == "shm":
        on_devices = "it moves tensors in host memory, and workers compute on CUDA devices" if on_cuda else None
        obstacle = _apart(hosts) or on_devices or unsupported()
    elif requested == "nccl":
        obstacle = _nccl_obstacle() if on_cuda else f"it moves tensors between CUDA devices, and device={device}"
    else:
        obstacle = _gloo_obstacle()
    if obstacle is not None:
        raise ConfigError(f"comm.backend={requested} cannot be used: {obstacle}. Use comm.backend=auto")
    return requested, "as requested"


def _apart(hosts: Sequence[str]) -> str | None:
    return f"workers on {', '.join(hosts)} do not share memory" if hosts else None


def _nccl_obstacle() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return "this build of torch has no NCCL"
    return None


def _gloo_obstacle() -> str | None:
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return "this build of torch has no gloo"
    return None


def make_group(
    view: View,
    key: str,
    control: ControlPage,
    backend: str,
    store: Callable[[], Store],
    timeout_s: float,
    device: str = "cpu",
) -> Group:
    """The group of all members of `view`, of which this process is the one with `key`. Collective.

    `backend` may be "auto"; `store`, where the members find each other, is opened only if the backend needs one. No
    earlier group of the run may have had the view's number. Raises `PeerLost` if the view breaks meanwhile.
    """
    member = view.member(key)
    if member is None:
        raise ShoalError(f"the process {key} is no member of view {view.number}")
    if view.size == 1:
        from shoal.comm.solo import SoloGroup

        return SoloGroup()
    hosts = () if view.on_one_host else tuple(dict.fromkeys(other.host for other in view.members))
    backend, _ = choose_backend(backend, device, hosts)
    if backend == "shm":
        from shoal.comm.shm import ShmGroup

        return ShmGroup(view, member, control, timeout_s)
    from shoal.comm.torch_group import TorchGroup

    if device == "cuda":  # each worker of a host has its own
        import torch

        device = f"cuda:{_neighbours(view, member).index(member) % torch.cuda.device_count()}"
    return TorchGroup(view, member, control, store(), backend, timeout_s, device)


def forget_older(view: View, member: Member, control: ControlPage) -> None:
    """Give back the shared memory of groups before that of `view`. To be called by all members once they have met in
    it, not before: until then one of them may not yet have seen that all had arrived in the last one.
    """
    if member == _neighbours(view, member)[0]:
        give_back_older(control.fd, view.number)


def _neighbours(view: View, member: Member) -> list[Member]:
    """The members that share a control page with `member`, itself included, in the order of ranks."""
    return [other for other in view.members if other.agent == member.agent]
