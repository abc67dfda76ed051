"""The average of trainers' weight differences: summed between the leaders of teams, then told within each team."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.names import AUTO, codec_named
from shoal.comm.group import Group
from shoal.core.errors import ConfigError
from shoal.strategies.common import CommonWeights

_SHARE_BYTES = 8  # a float64 before every payload


class Averager:
    """What a codec leaves out is carried over to the next average; it belongs to the leader that left it out."""

    def __init__(self, common: CommonWeights, codec: str) -> None:
        if codec == AUTO:
            raise ConfigError(
                "comm.codec=auto chooses by the time of single steps, which do not send anything here: state a codec, "
                "such as comm.codec=int8, or none: incremental.h=auto already weighs sending against computing"
            )
        self._common = common
        self._feedback = ErrorFeedback(codec_named(codec)) if codec != "none" else None
        self.bytes_sent = 0  # by this worker, in the last average

    def attach(self, outer: Group | None, inner: Group) -> None:
        """`outer` joins the leaders of all teams and is None on others; `inner` is the team."""
        self._outer, self._inner = outer, inner

    def average(self, share: float) -> Tensor:
        """The sum of all differences, each weighted by its trainer's share. Collective; the same bits everywhere."""
        flat, outer, inner = self._common.difference(), self._outer, self._inner
        self.bytes_sent = 0
        if outer is not None and outer.size > 1:
            if self._feedback is None:
                self._sum_exactly(flat, share, outer)
            else:
                self._sum_coded(flat, share, outer, self._feedback)
        if inner.size > 1:
            inner.broadcast(flat, 0, "the average of all teams")
        return flat

    def _sum_exactly(self, flat: Tensor, share: float, outer: Group) -> None:
        flat.mul_(share)
        outer.all_reduce(flat, "averaging weight differences")
        self.bytes_sent = 2 * flat.nbytes * (outer.size - 1) // outer.size

    def _sum_coded(self, flat: Tensor, share: float, outer: Group, feedback: ErrorFeedback) -> None:
        """Parameters are coded one by one; running statistics are few, and travel as they are."""
        common = self._common
        parts = list(common.parts(flat))
        coded, exact = parts[: len(common.names)], parts[len(common.names) :]
        payloads = [feedback.encode(name, part) for name, part in zip(common.names, coded, strict=True)]
        plain = [part.reshape(-1).view(torch.uint8) for part in exact]
        head = torch.tensor([share], dtype=torch.float64).view(torch.uint8)
        word = torch.cat([head, *payloads, *plain]).numpy().tobytes()
        self.bytes_sent = len(word) * (outer.size - 1)
        words = outer.gather_bytes(word, "averaging weight differences")
        flat.zero_()
        for told in words:  # in the order of ranks, so that all find the same bits
            self._add(coded, exact, torch.frombuffer(bytearray(told), dtype=torch.uint8), feedback)

    def _add(self, coded: list[Tensor], exact: list[Tensor], word: Tensor, feedback: ErrorFeedback) -> None:
        """Add one trainer's difference."""
        share, at = float(word[:_SHARE_BYTES].view(torch.float64)), _SHARE_BYTES
        for name, part in zip(self._common.names, coded, strict=True):
            length = feedback.codec.payload_bytes(part.shape, part.dtype)
            feedback.codec.decode(name, word[at : at + length], part, share, add=True)
            at += length
        for part in exact:
            values = word[at : at + part.nbytes].clone().view(part.dtype)
            part.add_(values.view(part.shape), alpha=share)
            at += part.nbytes

    def commit(self) -> None:
        """The average is part of the common weights."""
        if self._feedback is not None:
            self._feedback.commit()

    def discard(self) -> None:
        """The average was broken off: what was left out before is still to be sent."""
        if self._feedback is not None:
            self._feedback.discard()

    def residual(self) -> Tensor | None:
        """What this trainer has left out so far, in one flat vector; None where nothing is ever left out."""
        if self._feedback is None:
            return None
        flat, state = torch.zeros_like(self._common.flat), self._feedback.state()
        for name, part in zip(self._common.names, self._common.parts(flat), strict=False):
            if name in state:
                part.copy_(state[name].view(part.shape))
        return flat

    def load(self, residual: Tensor | None) -> None:
        """Carry on what was left out before; None: nothing."""
        if self._feedback is not None:
            parts = self._common.parts(residual) if residual is not None else iter(())
            self._feedback.load({name: part.clone() for name, part in zip(self._common.names, parts, strict=False)})
