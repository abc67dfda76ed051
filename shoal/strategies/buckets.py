"""Gradients in flat buckets: where each lies, in which reducer, and what codecs have left out of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.comm.codecs.coded import CodedReducer, Section
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.leaders import coded_reducer
from shoal.comm.group import BucketReducer, BucketSpec
from shoal.core.state import Piece
from shoal.strategies.base import Runtime
from shoal.strategies.memory import view_like
from shoal.strategies.narrowing import Narrowing

_FIRST_BUCKET_BYTES = 1 << 20  # small, so that reducing starts early
RESIDUAL = "residual."  # before the name of a parameter, in a state
_CODED_TYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Slot:
    """Where a parameter's gradient lies: elements ``[start, stop)`` of bucket `bucket`."""

    bucket: int
    start: int
    stop: int


def fuse(sizes: Sequence[tuple[int, torch.dtype]], bucket_bytes: int) -> tuple[list[Slot], list[BucketSpec]]:
    """Place gradients, given by (elements, dtype) in the order in which they become final, into buckets. Pure.

    A bucket holds one dtype; it is closed when it has reached `bucket_bytes`, the first one earlier.
    """
    slots: list[Slot] = []
    specs: list[BucketSpec] = []
    open_bucket: dict[torch.dtype, int] = {}
    for numel, dtype in sizes:
        if dtype not in open_bucket:
            open_bucket[dtype] = len(specs)
            specs.append(BucketSpec(0, dtype))
        bucket = open_bucket[dtype]
        start = specs[bucket].numel
        slots.append(Slot(bucket, start, start + numel))
        specs[bucket] = BucketSpec(start + numel, dtype)
        limit = min(_FIRST_BUCKET_BYTES, bucket_bytes) if bucket == 0 else bucket_bytes
        if specs[bucket].numel * dtype.itemsize >= limit:
            del open_bucket[dtype]
    return slots, specs


class GradientBuckets:
    """The gradients of `parameters`, given by name in the order in which they become final, in the buckets of a
    reducer: the group's, or with `feedback` one that codes them. One more bucket holds `statistics` numbers that are
    added up as they are. `divided`: sums of gradients are divided by the group's weight.

    With exact sums buckets are wider than the parameters: float64 holds the sum of a few float32 values without
    rounding, so neither the order of grains nor the number of workers leaves a trace in it. What is coded is not exact
    anyway.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        statistics: int,
        facts: int,
        runtime: Runtime,
        feedback: ErrorFeedback | None,
        divided: bool,
    ) -> None:
        self._parameters, self._divided = parameters, divided
        group, own = runtime.group, [parameter for _, parameter in parameters]
        wide = runtime.exact_sums and feedback is None
        kinds = [torch.float64 if wide else p.dtype for p in own]
        sizes = [(p.numel(), kind) for p, kind in zip(own, kinds, strict=True)]
        self._slots, specs = fuse(sizes, runtime.bucket_bytes)
        if not divided:
            specs = [BucketSpec(spec.numel, spec.dtype, divided=False) for spec in specs]
        specs.append(BucketSpec(statistics, torch.float64, divided=False))
        self.payload_bytes = sum(spec.numel * spec.dtype.itemsize for spec in specs)
        self._coded: CodedReducer | None = None
        self.reducer: BucketReducer
        if feedback is None:
            self.reducer = group.reducer(specs, facts)
            self.bytes_per_step = group.bytes_to_sum(self.payload_bytes)
        else:
            self.reducer = self._coded = coded_reducer(group, specs, facts, feedback, self._sections(len(specs)))
            self.bytes_per_step = self._coded.bytes_sent
        self.statistics = self.reducer.buffers[-1]
        self.views = [view_like(self._flat(slot), p) for slot, p in zip(self._slots, own, strict=True)]
        self._narrowing = Narrowing([self._flat(slot) for slot in self._slots], own) if wide else None
        self.bucket_of = [slot.bucket for slot in self._slots]
        self.members = [self.bucket_of.count(bucket) for bucket in range(len(specs) - 1)]

    def _flat(self, slot: Slot) -> Tensor:
        return self.reducer.buffers[slot.bucket][slot.start : slot.stop]

    def sums(self) -> list[Tensor]:
        """What the reducer has summed, in the type of the parameters. To be called once after each `finish`; from then
        until the next step's first gradient the memory of `views` holds these."""
        return self.views if self._narrowing is None else self._narrowing.narrow()

    def _sections(self, buckets: int) -> list[list[Section]]:
        """What lies in each bucket; nothing in that of the statistics."""
        found: list[list[Section]] = [[] for _ in range(buckets)]
        for (name, parameter), slot in zip(self._parameters, self._slots, strict=True):
            found[slot.bucket].append(Section(name, slot.start, slot.stop, tuple(parameter.shape)))
        return found

    def open(self, weight: float, samples: int) -> None:
        """Begin a step: `weight` is this worker's, `samples` those of the global batch."""
        if self._coded is not None:
            self._coded.open(weight, float(samples) if self._divided else 1.0)
        else:
            self.reducer.open(weight)

    def gradients(self) -> list[tuple[str, Tensor]]:
        """The gradients of the step before, as a codec would be given them."""
        narrowed = self._narrowing.flats if self._narrowing is not None else None
        flats = narrowed or [self._flat(slot) for slot in self._slots]
        return [
            (name, flat.to(p.dtype).view(p.shape))
            for (name, p), flat in zip(self._parameters, flats, strict=True)
            if p.dtype in _CODED_TYPES
        ]

    @property
    def are_coded(self) -> bool:
        return self._coded is not None

    def residuals(self) -> dict[str, Piece]:
        """What the codecs of all workers have left out so far, by parameter. Collective."""
        flat = self._coded.summed_residuals() if self._coded is not None else {}
        return {f"{RESIDUAL}{n}": Piece.whole(view_like(flat[n], p)) for n, p in self._parameters if n in flat}

    def load_residuals(self, pieces: Mapping[str, Piece]) -> None:
        """Go on with those residuals that are among `pieces`, and with no others. Not collective."""
        if self._coded is None:
            return
        found: dict[str, Tensor] = {}
        for name, parameter in self._parameters:
            if (piece := pieces.get(f"{RESIDUAL}{name}")) is not None:
                found[name] = torch.empty(parameter.numel(), dtype=piece.tensor.dtype)
                view_like(found[name], parameter).copy_(piece.tensor)
        self._coded.load_residuals(found)


def residual_pieces(pieces: Mapping[str, Piece]) -> dict[str, Piece]:
    """Those of a state that `load_residuals` looks at."""
    return {name: piece for name, piece in pieces.items() if name.startswith(RESIDUAL)}
