"""Measuring what `choose` decides by: the link of a group, and what codecs cost on real gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shoal.comm.codecs.choose import CodecCost
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.names import codec_named
from shoal.comm.group import Group

_LINK_BYTES = 2 << 20  # enough to see the bandwidth, little beside a gradient that is worth coding
_CODEC_BYTES = 4 << 20  # so much of a gradient is coded to see what it costs
_PINGS, _TRIES = 3, 2
_SHORTEST_S = 1e-6


def measure_link(group: Group, most_bytes: int) -> tuple[float, float]:
    """The bandwidth of one member (bytes/s) and the latency (s) of sums over `group`. Collective. No more than
    `most_bytes` are summed at a time, nor more than shows the bandwidth."""
    ping = torch.zeros(1)
    latency_s = _quickest(_PINGS, lambda: group.all_reduce(ping, "measuring the link"))
    load = torch.zeros(max(1, min(most_bytes, _LINK_BYTES) // 4))
    load_s = _quickest(_TRIES, lambda: group.all_reduce(load, "measuring the link"))
    sent = 2 * (group.size - 1) / group.size * load.nbytes
    return sent / max(load_s - latency_s, _SHORTEST_S), latency_s


def measure_codec(spec: str, gradients: Sequence[tuple[str, Tensor]], gradient_bytes: int, workers: int) -> CodecCost:
    """What the codec `spec` costs on these gradients, by parameter, of which `gradient_bytes` are sent without it."""
    codec = codec_named(spec)
    whole = sum(tensor.nbytes for _, tensor in gradients)
    if codec.by_parameter:
        payload = sum(codec.payload_bytes(tensor.shape, tensor.dtype) for _, tensor in gradients)
        tried = _largest(gradients)
    else:
        payload = codec.payload_bytes((sum(tensor.numel() for _, tensor in gradients),))
        tried = [("all", torch.cat([tensor.reshape(-1) for _, tensor in _largest(gradients)]))]
    share = sum(tensor.nbytes for _, tensor in tried) / whole if whole else 1.0
    feedback = ErrorFeedback(codec)
    payloads = [feedback.encode(name, tensor) for name, tensor in tried]
    decoded = [torch.empty_like(tensor) for _, tensor in tried]
    for (name, _), given, out in zip(tried, payloads, decoded, strict=True):
        codec.decode(name, given, out)
    error = _distance([tensor for _, tensor in tried], decoded)
    feedback.commit()

    def encode() -> None:
        for name, tensor in tried:
            feedback.encode(name, tensor)
        feedback.commit()

    def decode() -> None:
        for (name, _), given, out in zip(tried, payloads, decoded, strict=True):
            codec.decode_sum(name, [given] * workers, out, 0.5)

    return CodecCost(
        spec,
        payload / gradient_bytes if gradient_bytes else 1.0,
        _quickest(_TRIES, encode) / share,
        _quickest(_TRIES, decode) / share,
        error,
    )


def _largest(gradients: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """The largest gradients, until there are enough bytes; of one that is larger than that, some rows."""
    chosen: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in sorted(gradients, key=lambda one: -one[1].numel()):
        if size >= _CODEC_BYTES:
            break
        if tensor.nbytes > _CODEC_BYTES:
            tensor = tensor[: max(1, len(tensor) * _CODEC_BYTES // tensor.nbytes)]  # noqa: PLW2901
        chosen.append((name, tensor))
        size += tensor.nbytes
    return chosen


def _distance(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    lost = sum(float((a - b).square().sum()) for a, b in zip(tensors, others, strict=True))
    size = sum(float(tensor.square().sum()) for tensor in tensors)
    distance = math.sqrt(lost / size) if size > 0 else 0.0
    return distance if math.isfinite(distance) else math.inf


def _quickest(tries: int, do: Callable[[], None]) -> float:
    """The seconds of the quickest of some tries: others were disturbed."""
    taken = []
    for _ in range(tries):
        begin = time.perf_counter()
        do()
        taken.append(time.perf_counter() - begin)
    return min(taken)
