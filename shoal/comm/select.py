"""Which backend a run uses, and the group it makes. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.comm.shm_segment import give_back_older, unsupported
from shoal.core.errors import ConfigError, ShoalError, nearest
from shoal.core.teams import Part, leaders, split
from shoal.core.world import Member, View

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from shoal.comm.control import ControlPage
    from shoal.comm.group import Group

BACKENDS = ("auto", "shm", "gloo", "hierarchical", "nccl")


def choose_backend(requested: str, device: str, hosts: Sequence[str] = (), neighbours: bool = False) -> tuple[str, str]:
    """The backend for workers that compute on `device`, and why, as shown in the run's header. `hosts`: where they are,
    if they do not share the memory of one; `neighbours`: some of them share a host.

    Raises `ConfigError` where the requested one cannot work.
    """
    if requested not in BACKENDS:
        raise ConfigError(f"comm.backend={requested!r} is not a backend: {nearest(requested, BACKENDS)}")
    on_cuda = device.startswith("cuda")
    if requested == "auto":
        if on_cuda:
            obstacle = _nccl_obstacle()
            return ("gloo", f"no NCCL: {obstacle}") if obstacle else ("nccl", "workers compute on CUDA devices")
        if hosts and neighbours:
            return "hierarchical", f"workers on {', '.join(hosts)}: one of each speaks for its host"
        obstacle = _apart(hosts) or unsupported()
        return (
            ("gloo", f"no shared memory: {obstacle}") if obstacle else ("shm", "all workers share this host's memory")
        )
    on_devices = "it moves tensors in host memory, and workers compute on CUDA devices" if on_cuda else None
    if requested == "shm":
        obstacle = _apart(hosts) or on_devices or unsupported()
    elif requested == "hierarchical":
        obstacle = on_devices or _gloo_obstacle()
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


def refuse_unencrypted(encrypt: str, between_hosts: bool) -> None:
    """Raise `ConfigError` where the user insists on encryption (``on``) in a run that other hosts may have a part in:
    members of a view, whatever the strategy, meet in a group, and no backend between hosts can encrypt."""
    if encrypt == "on" and between_hosts:
        raise ConfigError(
            "comm.encrypt=on cannot be kept between hosts: workers of several hosts are connected by ports that gloo "
            "(or NCCL) opens itself, and PyTorch's build of it neither encrypts nor authenticates. Use "
            "comm.encrypt=auto, which encrypts all else, on a network that you trust or through a tunnel such as "
            "WireGuard; or train on one host, without --listen"
        )


def make_group(
    view: View,
    key: str,
    control: ControlPage,
    backend: str,
    store: Callable[[], Store],
    timeout_s: float,
    device: str = "cpu",
    part: Part | None = None,
) -> Group:
    """The group of the members of `view`, or only of those of `part`, of which this process is the one with `key`.
    Collective for them. Several parts of a view may be there at the same time, beside the group of the whole.

    `backend` may be "auto"; `store`, where the members of the view find each other, is opened only if the backend needs
    one. No earlier group of the run may have had the numbers of the view and the part. Raises `PeerLost` if the view
    breaks meanwhile.
    """
    whole = Part.whole(view)
    part = part or whole
    member = view.member(key)
    if member is None or member not in part.members:
        which = f"part {part.number} of view {view.number}" if part.number else f"view {view.number}"
        raise ShoalError(f"the process {key} is no member of {which}")
    if part.size == 1:
        from shoal.comm.solo import SoloGroup

        return SoloGroup()
    by_host = split(part.members, "host")
    hosts = () if len(by_host) == 1 else tuple(dict.fromkeys(other.host for other in part.members))
    backend, _ = choose_backend(backend, device, hosts, len(by_host) < part.size)
    if backend == "hierarchical":
        if 1 < len(by_host) < part.size:
            return _hierarchical(view, member, control, store, timeout_s, part)
        backend, _ = choose_backend("auto", device, hosts)  # there is only one level
    if backend == "shm":
        from shoal.comm.shm import ShmGroup

        return ShmGroup(view, member, control, timeout_s, part)
    from shoal.comm.part_store import PartStore
    from shoal.comm.torch_group import TorchGroup

    if device == "cuda":  # each worker of a host has its own
        import torch

        device = f"cuda:{whole.neighbours(member).index(member) % torch.cuda.device_count()}"
    meeting = PartStore(store(), f"part-{part.number}") if part.number else store()
    return TorchGroup(view, member, control, meeting, backend, timeout_s, device, part)


def _hierarchical(
    view: View, member: Member, control: ControlPage, store: Callable[[], Store], timeout_s: float, part: Part
) -> Group:
    """Workers of a host among themselves, and one of each host for all of them.

    Both levels have the number of the part. They do not meet in memory: only one member of a host is in the upper one,
    which is connected by gloo.
    """
    from shoal.comm.hierarchical import HierarchicalGroup
    from shoal.comm.part_store import PartStore

    teams = split(part.members, "host")
    team = next(team for team in teams if member in team)

    def level(members: tuple[Member, ...], name: str) -> Group:
        def meeting() -> Store:
            return PartStore(store(), name)

        return make_group(view, member.key, control, "auto", meeting, timeout_s, "cpu", Part(part.number, members))

    inner = level(team, f"host-{team[0].rank}")
    try:
        outer = level(leaders(teams), "leaders") if member == team[0] else None
    except BaseException:
        inner.close()
        raise
    return HierarchicalGroup(teams, member, inner, outer)


def forget_older(view: View, member: Member, control: ControlPage) -> None:
    """Give back the shared memory of groups before those of `view`. To be called by all members once they have met in
    it, not before: until then one of them may not yet have seen that all had arrived in the last one.
    """
    if member == Part.whole(view).neighbours(member)[0]:
        give_back_older(control.fd, view.number)
