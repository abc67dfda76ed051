"""The average of trainers' weight differences: summed between the leaders of teams, then told within each team.

With ``comm.codec=auto`` the leaders choose a codec before the first average: each knows by then what a local step
costs, and they measure their link and what codecs cost on the differences that are about to be sent.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from shoal.comm.codecs.choose import CodecChoice
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.group import Group
from shoal.strategies.coding import Coding
from shoal.strategies.common import CommonWeights

_SHARE_BYTES = 8  # a float64 before every payload
# what ``auto`` looks at: a difference holds the gradients of many steps, and takes a higher rank than one of them does
_CANDIDATES = ("fp16", "bf16", "int8", "powersgd:32")


class Averager:
    """What a codec leaves out is carried over to the next average; it belongs to the leader that left it out."""

    def __init__(self, common: CommonWeights, codec: str, device: str) -> None:
        self._common, self._lossless = common, codec == "none"
        self._coding = Coding(codec, device, _CANDIDATES, warm_up=0, timed=1)
        self._carried: Tensor | None = None  # what was left out before a checkpoint, until a codec is chosen
        self.bytes_sent = 0  # by this worker, in the last average
        self.choosing_s = 0.0  # of the last average, that went into finding a codec

    @property
    def choice(self) -> CodecChoice | None:
        """What ``auto`` has chosen; None before, and on workers that do not lead a team."""
        return self._coding.choice

    @property
    def coded(self) -> bool:
        """Whether differences go through a codec."""
        return self._coding.feedback is not None

    def attach(self, outer: Group | None, inner: Group) -> None:
        """`outer` joins the leaders of all teams and is None on others; `inner` is the team. Collective."""
        self._outer, self._inner = outer, inner
        if outer is not None:
            self._coding.meet(outer)

    def average(self, share: float, compute_s: float) -> Tensor:
        """The sum of all differences, each weighted by its trainer's share. `compute_s` is the time of as many local
        steps as an average must pay for. Collective; the same bits everywhere."""
        flat, outer, inner = self._common.difference(), self._outer, self._inner
        self.bytes_sent, self.choosing_s = 0, 0.0
        if self._carried is not None:
            flat.add_(self._carried)
        if outer is not None and outer.size > 1:
            self._choose(flat, outer, compute_s)
            if self._coding.feedback is None:
                self._sum_exactly(flat, share, outer)
            else:
                self._sum_coded(flat, share, outer, self._coding.feedback)
        if inner.size > 1:
            inner.broadcast(flat, 0, "the average of all teams")
        return flat

    def _choose(self, flat: Tensor, outer: Group, compute_s: float) -> None:
        """With ``auto``, find a codec if there is none yet. Collective among the leaders."""
        if self._coding.measuring(outer):
            began, names = time.perf_counter(), self._common.names
            self._coding.note(compute_s, None)
            self._coding.decide(outer, lambda: list(zip(names, self._common.parts(flat), strict=False)), flat.nbytes)
            self.choosing_s = time.perf_counter() - began

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
        self._carried = None
        self._coding.commit()

    def discard(self) -> None:
        """The average was broken off: what was left out before is still to be sent."""
        self._coding.discard()

    def residual(self) -> Tensor | None:
        """What this trainer has left out so far, in one flat vector; None where nothing is ever left out."""
        if self._lossless:
            return None
        if self._carried is not None:
            return self._carried.clone()
        flat, feedback = torch.zeros_like(self._common.flat), self._coding.feedback
        state = feedback.state() if feedback is not None else {}
        for name, part in zip(self._common.names, self._common.parts(flat), strict=False):
            if name in state:
                part.copy_(state[name].view(part.shape))
        return flat

    def load(self, residual: Tensor | None) -> None:
        """Carry on what was left out before; None: nothing."""
        feedback, self._carried = self._coding.feedback, None
        if feedback is not None:
            parts = self._common.parts(residual) if residual is not None else iter(())
            feedback.load({name: part.clone() for name, part in zip(self._common.names, parts, strict=False)})
        elif not self._lossless:
            self._carried = residual
