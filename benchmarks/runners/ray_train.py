"""Ray Train: a TorchTrainer whose workers each run DDP, in a Ray of its own that ends with the run."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from benchmarks import workloads
from benchmarks.runners.job import Job, Stopwatch


def train(settings: dict[str, Job]) -> None:
    """What each of Ray's workers runs."""
    from ray.train import get_context  # type: ignore[import-not-found]  # only in the peers' environment
    from ray.train.torch import prepare_model  # type: ignore[import-not-found]  # as above

    job, rank = settings["job"], get_context().get_world_rank()
    torch.set_num_threads(1)
    model = prepare_model(workloads.model(job))
    optimizer = workloads.optimizer(model.parameters())
    criterion = nn.CrossEntropyLoss()
    stopwatch = Stopwatch(job, meet=dist.barrier)
    for x, y in workloads.batches(job, rank):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        stopwatch.step()
    stopwatch.report(workloads.checksum(model)).save(job, rank)


def main() -> None:
    # a token for this run alone; without one Ray would leave a lasting one in the user's home
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray  # type: ignore[import-not-found]  # only in the peers' environment
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    job = Job.load()
    # one CPU more than there are workers, since the trainer itself takes a place; the path is short, since
    # sockets lie below it; half a gibibyte is ample for an object store that holds no objects
    ray.init(
        num_cpus=job.workers + 1,
        object_store_memory=512 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(Path(job.directory) / "r"),
    )
    try:
        trainer = TorchTrainer(
            train,
            train_loop_config={"job": job},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=job.workers, use_gpu=False),
            run_config=RunConfig(storage_path=str(Path(job.directory) / "ray")),
        )
        trainer.fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
