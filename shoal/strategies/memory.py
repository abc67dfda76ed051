"""How tensors lie in memory: by channel or by pixel, and gradients as their parameters do."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.strategies.objective import Batch


def arrange(batch: Batch, layout: str) -> Batch:
    """Lay the images of a batch (tensors of four dimensions) out as `layout` says; leave everything else alone."""
    if layout == "as_given":
        return batch
    if isinstance(batch, Tensor):
        return batch.contiguous(memory_format=torch.channels_last) if batch.dim() == 4 else batch
    if isinstance(batch, dict):
        return {key: arrange(value, layout) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(arrange(value, layout) for value in batch)
    return batch


def is_dense(tensor: Tensor) -> bool:
    """Whether `tensor` fills its memory in one of the two orders: what fused kernels and views of buckets rely on."""
    by_pixel = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return by_pixel or tensor.is_contiguous()


def view_like(flat: Tensor, tensor: Tensor) -> Tensor:
    """View `flat`, which has as many elements, in the shape of `tensor` and in its order in memory."""
    if not is_dense(tensor):
        return flat.view(tensor.shape)
    return flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset())
