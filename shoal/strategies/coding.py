"""Which codec a replica's gradients go through, with what it has left out so far; with ``auto``, how it is found.

With ``auto`` the first steps of a view go without a codec and are timed. Then all workers measure link and codecs, tell
each other, and draw the same conclusion, which holds in later views too as long as their groups are of the same kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import median

from torch import Tensor

from shoal.comm.codecs.choose import (
    CANDIDATES,
    CodecChoice,
    CodecCost,
    Measured,
    choose,
    combine,
    is_worth_trying,
)
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.names import AUTO, check_codec, codec_named
from shoal.comm.codecs.probe import measure_codec, measure_link
from shoal.comm.group import Group
from shoal.core.errors import ConfigError

_NONE = "none"
_WARM_UP, _TIMED = 2, 3  # steps without a codec before the choice


def check_usable(spec: str, device: str) -> None:
    """Raise `ConfigError` where the codec `spec` cannot be used on `device`, or is none."""
    check_codec(spec)
    if spec != _NONE and device.startswith("cuda"):
        raise ConfigError(f"comm.codec={spec} works in host memory, and device={device}: use comm.codec=none")


class Coding:
    """`feedback` is the codec in use with its residuals, None where gradients travel as they are. `choice` is what was
    chosen with ``auto``, and stays None until then. All workers of a group have the same codec at the same step.
    ``auto`` picks from `candidates` when `timed` steps have been timed, after `warm_up` others."""

    def __init__(
        self, spec: str, device: str, candidates: Sequence[str] = CANDIDATES, warm_up: int = _WARM_UP,
        timed: int = _TIMED,
    ) -> None:  # fmt: skip
        check_usable(spec, device)
        self._auto = spec == AUTO
        self._candidates, self._warm_up, self._timed = candidates, warm_up, timed
        self.choice: CodecChoice | None = None
        self._backend = ""  # of the group in which it was made
        self._steps: list[tuple[float, float | None]] = []  # computing and waiting of the steps that were timed
        self.feedback: ErrorFeedback | None = None
        if not self._auto:
            self._use(spec)

    def _use(self, name: str) -> None:
        """Residuals of another codec are lost: its tensors may be cut in another way."""
        if name == _NONE:
            self.feedback = None
        elif self.feedback is None or self.feedback.codec.name != codec_named(name).name:
            self.feedback = ErrorFeedback(codec_named(name))

    def meet(self, group: Group) -> None:
        """Go on in another group: as its members have chosen, if one of them has in a group of this kind; else all
        begin to measure. Collective with ``auto``."""
        if not self._auto or group.size == 1:
            return
        mine = {"choice": asdict(self.choice) if self.choice is not None else None, "backend": self._backend}
        words = group.gather_bytes(json.dumps(mine).encode(), "agreeing on a codec")
        known = [word for word in map(json.loads, words) if word["choice"] and word["backend"] == group.backend]
        self._steps.clear()
        self._settle(CodecChoice(**known[0]["choice"]) if known else None, group)

    def _settle(self, choice: CodecChoice | None, group: Group) -> None:
        self.choice, self._backend = choice, group.backend
        self._use(choice.name if choice is not None else _NONE)

    # ---- finding one

    def measuring(self, group: Group) -> bool:
        """Whether this step is one of those by which the codec is chosen."""
        return self._auto and self.choice is None and group.size > 1

    def note(self, compute_s: float, wait_s: float | None) -> None:
        """A step without a codec is done; `wait_s`: what it waited for sums after it had computed, None where nothing
        was summed."""
        self._steps.append((compute_s, wait_s))

    def due(self, group: Group) -> bool:
        """Whether all workers must now call `decide`."""
        return self.measuring(group) and len(self._steps) >= self._warm_up + self._timed

    def decide(self, group: Group, gradients: Callable[[], Sequence[tuple[str, Tensor]]], gradient_bytes: int) -> None:
        """Measure, agree and choose. `gradients` are those of the last step by parameter, of which `gradient_bytes`
        were sent. Collective."""
        link, coders = group.coding()
        # who does not code has no say in it
        bandwidth, latency_s = measure_link(link, gradient_bytes) if link is not None else (math.inf, 0.0)
        timed = self._steps[self._warm_up :]
        waits = [wait_s for _, wait_s in timed if wait_s is not None]
        mine = Measured(
            compute_s=median(compute_s for compute_s, _ in timed),
            gradient_bytes=gradient_bytes,
            bandwidth=bandwidth,
            latency_s=latency_s,
            exposed_s=median(waits) if waits else None,
        )
        together = _tell(group, mine)
        if is_worth_trying(together, coders):
            given = gradients()
            costs = tuple(measure_codec(name, given, gradient_bytes, coders) for name in self._candidates)
            together = _tell(group, replace(mine, costs=costs))
        self._settle(choose(together, coders), group)

    # ---- transactions

    def commit(self) -> None:
        if self.feedback is not None:
            self.feedback.commit()

    def discard(self) -> None:
        if self.feedback is not None:
            self.feedback.discard()


def _tell(group: Group, mine: Measured) -> Measured:
    """What all members have measured, as it holds for the group. Collective."""
    words = group.gather_bytes(json.dumps(asdict(mine)).encode(), "choosing a codec")
    everyone = [json.loads(word) for word in words]
    return combine([Measured(**{**one, "costs": tuple(CodecCost(**c) for c in one["costs"])}) for one in everyone])
