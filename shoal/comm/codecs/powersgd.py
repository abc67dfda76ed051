"""Matrices as products of two thin ones: PowerSGD (Vogels, Karimireddy, Jaggi 2019).

One step of power iteration from the factor of the step before, which is near to what it seeks since gradients change
slowly: P = M Q, made orthonormal; then Q = M^T P. What is sent is P and Q, what is decoded is P Q^T.

torch has this as a hook for its own `DistributedDataParallel` (`torch.distributed.algorithms.ddp_comm_hooks
.powerSGD_hook`), which cannot serve here: it is bound to the buckets of that class and to a process group, in which it
sums P and Q over all workers in two rounds, and its memory neither follows a step that is broken off nor a worker that
is lost. The rule by which a tensor is worth it and the way to make a matrix of it are the hook's. Factors are this
worker's own, so one round is enough, and each worker's gradient has the full rank that was asked for. Columns are made
orthonormal by QR at any rank: unlike Gram-Schmidt, which the hook uses up to rank 2, it gives a basis even where a
gradient is zero, so a worker without samples does not lose its factor for ever.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec, as_bytes, as_dtype
from shoal.comm.codecs.names import number
from shoal.comm.codecs.plain import Plain

DEFAULT_RANK = 4
_LEAST_GAIN = 2  # a tensor is worth it where the factors are so many times smaller


class PowerSGD(Codec):
    """Payloads of matrices are P, then Q transposed, in float32; of vectors and small matrices, what they are.

    The factors from which the next step begins follow `commit` and `discard`. They are not in checkpoints: a run that
    goes on begins with random ones, as it did first.
    """

    by_parameter = True

    def __init__(self, rank: int = DEFAULT_RANK) -> None:
        self.rank = rank
        self.name = f"powersgd:{rank}"
        self._plain = Plain()
        self._factors: dict[str, Tensor] = {}  # by name: Q transposed, after the last commit
        self._next: dict[str, Tensor] = {}

    def encode(self, name: str, tensor: Tensor) -> Tensor:
        if not self._worth(tensor.shape):
            return self._plain.encode(name, tensor)
        matrix = _matrix(tensor).float()
        rows, columns = matrix.shape
        before = self._factors.get(name)
        if before is None:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            before = torch.randn(self.rank, columns, generator=generator)
        left = torch.mm(matrix, before.t())
        if not bool(left.isfinite().all()):  # some number of the matrix is not: all of it will be
            return as_bytes(torch.full((self.rank * (rows + columns),), torch.nan))
        left = torch.linalg.qr(left).Q
        right = torch.mm(left.t(), matrix)
        if bool(right.any()):
            self._next[name] = right
        return torch.cat([as_bytes(left.contiguous()), as_bytes(right)])

    def decode(self, name: str, payload: Tensor, out: Tensor, scale: float = 1.0, add: bool = False) -> None:
        if not self._worth(out.shape):
            self._plain.decode(name, payload, out, scale, add)
            return
        left, right = self._split(payload, out)
        target = _matrix(out)
        target.addmm_(left.to(out.dtype), right.to(out.dtype), beta=1.0 if add else 0.0, alpha=scale)

    def decode_sum(self, name: str, payloads: Sequence[Tensor], out: Tensor, scale: float = 1.0) -> None:
        if not self._worth(out.shape):
            super().decode_sum(name, payloads, out, scale)
            return
        factors = [self._split(payload, out) for payload in payloads]
        left = torch.cat([factor for factor, _ in factors], dim=1).to(out.dtype)
        right = torch.cat([factor for _, factor in factors], dim=0).to(out.dtype)
        _matrix(out).addmm_(left, right, beta=0.0, alpha=scale)  # memory is gone through once

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        if not self._worth(shape):
            return self._plain.payload_bytes(shape, dtype)
        return 4 * self.rank * (shape[0] + prod(shape[1:]))

    def commit(self) -> None:
        self._factors.update(self._next)
        self._next.clear()

    def discard(self) -> None:
        self._next.clear()

    def _worth(self, shape: Sequence[int]) -> bool:
        if len(shape) < 2:
            return False
        rows, columns = shape[0], prod(shape[1:])
        return (rows + columns) * self.rank * _LEAST_GAIN < rows * columns

    def _split(self, payload: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = out.shape[0], prod(out.shape[1:])
        numbers = as_dtype(payload, torch.float32)
        return numbers[: rows * self.rank].view(rows, self.rank), numbers[rows * self.rank :].view(self.rank, columns)


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.detach().view(tensor.shape[0], -1)


def make_powersgd(parameter: str | None) -> Codec:
    if parameter is None:
        return PowerSGD()
    return PowerSGD(int(number("powersgd", parameter, int, 1, 1024, "the rank of the factors, a whole number")))
