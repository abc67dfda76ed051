"""DistributedDataParallel over gloo, plain or with torch's PowerSGD hook: one process a host."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.runners.slow_link import Keeper, Task, model, samples

# exact steps before the first compressed one: the fewest that the hook takes with error feedback and warm start
_EXACT_STEPS = 2
_ONE_BUCKET_MB = 1024


def main() -> None:
    task = Task.load()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if task.rank == 0:  # plain, as its manual has it
        ddp = DistributedDataParallel(model(task))
    else:
        # in one bucket: with several, the hook's own collectives are begun in an order that differs between processes,
        # which gloo does not take
        ddp = DistributedDataParallel(model(task), gradient_as_bucket_view=True, bucket_cap_mb=_ONE_BUCKET_MB)
    # with the hook, what else makes it quicker is switched on
    optimizer = torch.optim.SGD(ddp.parameters(), lr=task.rate, momentum=task.momentum, fused=task.rank > 0)
    if task.rank:
        state = PowerSGDState(None, matrix_approximation_rank=task.rank, start_powerSGD_iter=_EXACT_STEPS)
        ddp.register_comm_hook(state, powerSGD_hook)
    x, y = samples(task)
    criterion = nn.CrossEntropyLoss()
    keeper = Keeper(task, ddp.parameters()) if rank == 0 else None
    dist.barrier()
    if keeper is not None:
        keeper.start()
        keeper.keep(0, ddp.parameters())
    share = task.global_batch // size
    for step in range(task.steps):
        start = step * task.global_batch + rank * share
        optimizer.zero_grad()
        criterion(ddp(x[start : start + share]), y[start : start + share]).backward()
        optimizer.step()
        if keeper is not None:
            keeper.keep(step + 1, ddp.parameters())
    dist.destroy_process_group()
    if keeper is not None:
        keeper.finish()


if __name__ == "__main__":
    main()
