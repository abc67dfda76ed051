"""Which backend a run uses, and the group it makes. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.comm.shm_segment import unsupported
from shoal.core.errors import ConfigError, nearest
from shoal.core.world import World

if TYPE_CHECKING:
    from shoal.comm.control import ControlPage
    from shoal.comm.group import Group

BACKENDS = ("auto", "shm", "gloo", "nccl")


def choose_backend(requested: str, device: str) -> tuple[str, str]:
    """The backend for workers on one host that compute on `device`, and why, as shown in the run's header.

    Raises `ConfigError` where the requested one cannot work.
    """
    if requested not in BACKENDS:
        raise ConfigError(f"comm.backend={requested!r} is not a backend: {nearest(requested, BACKENDS)}")
    on_cuda = device.startswith("cuda")
    if requested == "auto":
        if on_cuda:
            obstacle = _nccl_obstacle()
            return ("gloo", f"no NCCL: {obstacle}") if obstacle else ("nccl", "workers compute on CUDA devices")
        obstacle = unsupported()
        return (
            ("gloo", f"no shared memory: {obstacle}") if obstacle else ("shm", "all workers share this host's memory")
        )
    if requested == "shm":
        obstacle = "it moves tensors in host memory, and workers compute on CUDA devices" if on_cuda else unsupported()
    elif requested == "nccl":
        obstacle = _nccl_obstacle() if on_cuda else f"it moves tensors between CUDA devices, and device={device}"
    else:
        obstacle = _gloo_obstacle()
    if obstacle is not None:
        raise ConfigError(f"comm.backend={requested} cannot be used: {obstacle}. Use comm.backend=auto")
    return requested, "as requested"


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
    world: World,
    control: ControlPage,
    backend: str,
    rendezvous: str | None,
    timeout_s: float,
    number: int = 0,
) -> Group:
    """The group of all workers of a run on one host. Collective; every member gives the same `number`, which
    no earlier group of this run had. `backend` may be "auto"; a worker alone needs none."""
    if world.size == 1:
        from shoal.comm.solo import SoloGroup

        return SoloGroup()
    backend, _ = choose_backend(backend, world.device)
    if backend == "shm":
        from shoal.comm.shm import ShmGroup

        return ShmGroup(control, world.rank, world.size, timeout_s, number)
    if rendezvous is None:
        raise ConfigError(f"comm.backend={backend} needs a rendezvous, which `shoal train` or fit(workers=N) gives")
    from shoal.comm.rendezvous import open_store
    from shoal.comm.torch_group import TorchGroup

    store = open_store(rendezvous, f"group-{number}", world.size, timeout_s)
    return TorchGroup(store, world, control, backend, timeout_s)
