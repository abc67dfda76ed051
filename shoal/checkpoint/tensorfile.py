"""One file of tensors in the safetensors format, kept in memory as it will lie on disk.

safetensors' own writer is not used: its `save` holds the interpreter's lock while it copies, and its
`save_file` leaves a second pass over the file for the checksum. Reading goes through safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.errors import CheckpointError

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

CHUNK_BYTES = 4 << 20  # large enough that the interpreter's lock changes hands rarely


@dataclass(frozen=True)
class _Slot:
    """Where a tensor's copy goes: `view` is a part of the file's bytes."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    view: Tensor


class TensorFile:
    """Room for the tensors of one file. Allocated once, filled as often as needed by tensors that fit.

    Not safe for threads: whoever reads `chunks` must be done before the next `fill`.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
                raise CheckpointError(
                    f"{name} is a tensor of {tensor.dtype}, {tensor.layout}, which a checkpoint cannot hold: "
                    "make it a dense tensor of a common type"
                )
        self._data = torch.empty(sum(_size_bytes(tensor) for tensor in tensors.values()), dtype=torch.uint8)
        header: dict[str, object] = {}
        slots: dict[str, _Slot] = {}
        begin = 0
        # the widest first, so that every tensor is aligned without gaps, which the format does not allow
        for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
            end = begin + _size_bytes(tensor)
            header[name] = {
                "dtype": DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
            view = self._data[begin:end].view(tensor.dtype).view(tensor.shape)
            slots[name] = _Slot(name, tensor.dtype, tensor.shape, view)
            begin = end
        self._slots = [slots[name] for name in tensors]  # in the order in which tensors will be given
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(8, "little") + text

    @property
    def size_bytes(self) -> int:
        return len(self._header) + self._data.numel()

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether `tensors` have the names, types and shapes, in the order, that this was made for."""
        return len(tensors) == len(self._slots) and all(
            slot.name == name and slot.dtype == tensor.dtype and slot.shape == tensor.shape
            for slot, (name, tensor) in zip(self._slots, tensors.items(), strict=True)
        )

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy `tensors`, which must fit."""
        for slot, tensor in zip(self._slots, tensors.values(), strict=True):
            slot.view.copy_(tensor)

    def chunks(self) -> Iterator[memoryview]:
        """The bytes of the file, in order."""
        yield memoryview(self._header)
        data = memoryview(self._data.numpy().data)
        for begin in range(0, len(data), CHUNK_BYTES):
            yield data[begin : begin + CHUNK_BYTES]


def parse(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, in memory of their own. Raises ValueError if it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return tensors


def _size_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
