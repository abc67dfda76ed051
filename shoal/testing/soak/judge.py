"""Whether a case has kept the laws. Pure, but for reading the last checkpoint."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.core.order import epoch_order
from shoal.testing.soak.calm import Calm, losses_of, parameters
from shoal.testing.soak.case import Case, runs_by
from shoal.testing.soak.conduct import Evidence, Leg
from shoal.testing.soak.network import make_model
from shoal.testing.soak.oracle import Truth, truth, whole_loss

# what the documentation says is refused: other refusals are failures
REFUSALS = (
    r"runs on at most 1 worker",
    r"looks at whole arrays: it cannot update single rows of a table",
    r"does not survive a change",
    r"SparseAdam",
    r"elastic\.max_workers=\d+",
    r"weights=.* names \d+ shares but workers=",
    r"statistics=global",
)
REFUSED = 2  # the exit status of a user's mistake
LEARNED = 0.2  # of what synchronous training learns, at least, where only learning is promised
ROUNDING = {True: 1e-9, False: 2e-4}  # relative, in double and in single precision
AMPLIFIED = 10  # times what one difference in the last place comes to: rounding happens in every operation
LESSON = 0.02  # of the loss, that plain PyTorch must take off it: with less, chance (dropout) is as large as learning
MOVED = 0.02  # of the way that a parameter goes there, at least: who is not trained stays where it was
NOISY = {"muon": 5e-2, "rprop": 5e-2}  # optimizers that make much of little: bf16 inside, signs of gradients


@dataclass(frozen=True)
class Violation:
    """A law that was not kept: its name in a word, and what was seen."""

    law: str
    words: str


@dataclass(frozen=True)
class Verdict:
    outcome: Literal["passed", "refused", "failed"]
    violations: tuple[Violation, ...] = ()
    words: str = ""


def judge(case: Case, seen: Evidence, calm: Calm | None = None) -> Verdict:
    """All laws, those first that tell most. Raises `Unfit` where plain PyTorch cannot train the program. `calm` is a
    run of one worker whom nothing happens to, where the same is promised as that gives."""
    refusal = refused(case, seen)
    if refusal is not None:
        return Verdict("refused", words=refusal)
    violations = [*_ends(seen), *_left(seen)]
    if not violations:
        drawn = calm.truth if calm is not None and case.program.draws else None
        expected = drawn or truth(case.program, grain(case, seen), seen.legs[0].way.served)
        violations = [*_coverage(case, seen), *_mathematics(case, seen, expected), *_culprits(seen)]
        if calm is not None and promises_bits(case, seen) and seen.summary.get("params_sha256") != calm.bits:
            violations.append(Violation("bits", "the parameters have other bits than those of one calm worker"))
    return Verdict("failed", tuple(violations)) if violations else Verdict("passed")


def grain(case: Case, seen: Evidence) -> int:
    """As the program says; else as the run has chosen it."""
    chosen = str(seen.config.get("grain"))
    return case.program.looks_at or (int(chosen) if chosen.isdigit() else case.program.batch)


def needs_calm(case: Case, seen: Evidence) -> bool:
    """Whether a calm run of the same program says more than plain PyTorch can: bits, and what is drawn."""
    return seen.last.status == 0 and (case.program.draws or promises_bits(case, seen))


def promises_bits(case: Case, seen: Evidence) -> bool:
    """Whether the same bits are promised as one calm worker has: grains run one by one, as the run has decided or the
    program, sums are exact, and nobody rounds them elsewhere."""
    ways = [leg.way for leg in seen.legs]  # with a codec, even one worker adds up as those do who send
    exact = all(way.exact and way.kind in ("single", "allreduce") and way.codec == "none" for way in ways)
    separate = seen.config.get("passes") == "grain" and not case.program.whole
    return exact and separate and not case.program.double and seen.last.status == 0


def refused(case: Case, seen: Evidence) -> str | None:
    """The message, where a command was refused as the documentation says: the first, before any step, or a later one
    that should go on in a way which cannot run the program. What came before that has ended well."""
    leg = seen.last
    if leg.status != REFUSED or any(_traceback(one) or one.hung or one.left for one in seen.legs):
        return None
    if len(seen.legs) == 1:
        expected = all(event.get("kind") != "step" for event in seen.events)
    else:
        expected = not runs_by(case.program, leg.way)
    message = leg.err.strip().removeprefix("shoal: error: ")
    return message if expected and any(re.search(pattern, message) for pattern in REFUSALS) else None


# ---- law 3: everything ends, well and in time


def _ends(seen: Evidence) -> Iterator[Violation]:
    for number, leg in enumerate(seen.legs):
        what = f"command {number + 1}"
        if leg.hung:
            yield Violation("waits", f"{what} waited for {leg.gap_s:.0f} s:\n{leg.stacks}\n{leg.err[-2000:]}")
        elif _traceback(leg):
            yield Violation("error", f"{what} ended with {leg.status}:\n{leg.err[-3000:]}")
        elif number == len(seen.legs) - 1 and leg.status != 0:
            yield Violation("completes", f"{what} ended with {leg.status}:\n{leg.err[-3000:]}")
    if seen.last.status == 0 and seen.summary.get("status") != "completed":
        yield Violation("completes", f"the summary says {seen.summary.get('status')}")


def _traceback(leg: Leg) -> bool:
    return "Traceback (most recent call last)" in leg.err + leg.out


def _left(seen: Evidence) -> Iterator[Violation]:
    for number, leg in enumerate(seen.legs):
        if leg.left:
            yield Violation("leaves", f"command {number + 1} has left behind: {', '.join(leg.left)}")


# ---- law 2: every sample once


def _coverage(case: Case, seen: Evidence) -> Iterator[Violation]:
    program = case.program
    total = program.samples * program.epochs
    said = seen.summary.get("coverage")
    if said != {"expected": total, "once": total, "missed": 0, "repeated": 0}:
        yield Violation("coverage", f"the run says {said} of {total} samples")
    if seen.summary.get("steps") != program.steps:
        yield Violation("coverage", f"{seen.summary.get('steps')} steps instead of {program.steps}")
    read = Counter(seen.read)
    few = [number for number in range(program.samples) if program.dataset and read[number] < program.epochs]
    if few:
        yield Violation("coverage", f"samples {few[:5]} were read less often than there are epochs")
    passed = Counter(number for one in seen.seen for number in one["samples"])
    few = [number for number in range(program.samples) if passed[number] < program.epochs]
    if few:
        yield Violation("coverage", f"samples {few[:5]} went through the model less often than there are epochs")
    if all(leg.way.exact for leg in seen.legs):
        yield from _steps(case, seen)


def _steps(case: Case, seen: Evidence) -> Iterator[Violation]:
    """Where all go in step, the last who did a step did all of its samples, each once. A server that is lost takes all
    back to a checkpoint, and may do so in the same view: then each as often as any other."""
    program = case.program
    back = any(one["kind"] in ("server", "freeze-server") for one in seen.hits)
    last: dict[int, tuple[int, int]] = {}
    for one in seen.seen:
        last[one["step"]] = max(last.get(one["step"], (-1, -1)), (one["leg"], one["view"]))
    for step in range(program.steps):
        epoch, batch = divmod(step, program.steps_per_epoch)
        order = epoch_order(program.seed, epoch, program.samples)
        wanted = sorted(int(n) for n in order[batch * program.batch : (batch + 1) * program.batch])
        passes = [one for one in seen.seen if one["step"] == step and (one["leg"], one["view"]) == last.get(step)]
        found = sorted(number for one in passes for number in one["samples"])
        times = len(found) // len(wanted) if back else 1
        if found != sorted(wanted * max(1, times)):
            yield Violation("coverage", f"step {step} is of samples {found} instead of {wanted}")
            return


# ---- law 1: the mathematics of one process


def _mathematics(case: Case, seen: Evidence, expected: Truth) -> Iterator[Violation]:
    found = parameters(seen.run_dir, case.program.steps)
    if found is None:
        yield Violation("checkpoint", "there is no good checkpoint of the last step")
        return
    if all(leg.way.exact for leg in seen.legs) and _one_table(case, seen):
        yield from _equal(case, seen, expected, found)
    else:
        yield from _learns(case, seen, expected, found)


def _one_table(case: Case, seen: Evidence) -> bool:
    """Whether one and the same is promised of sparse tables all along: on servers, only touched rows are updated."""
    served = {leg.way.served for leg in seen.legs}
    return not case.program.sparse or served == {False} or (served == {True} and not case.program.draws)


def _equal(case: Case, seen: Evidence, expected: Truth, found: dict[str, Tensor]) -> Iterator[Violation]:
    program = case.program
    allowed = NOISY.get(program.optimizer, ROUNDING[program.double])
    apart, worst = _apart(found, {**expected.parameters, **expected.buffers})
    if not apart <= allowed and not program.draws:
        allowed = max(allowed, AMPLIFIED * _rounding(case, seen, expected))
    if not apart <= allowed:
        losses = losses_of(seen.events)
        first = next((at for at, loss in enumerate(expected.losses) if _off(losses.get(at), loss, allowed)), None)
        where = (
            ""
            if first is None
            else f"; the loss differs first at step {first}: {losses.get(first)} instead of {expected.losses[first]}"
        )
        yield Violation("mathematics", f"the parameters are {apart:.1e} from plain PyTorch, {worst} most{where}")
    measured = (seen.summary.get("final") or {}).get("test_loss")
    if measured is not None and _off(measured, expected.test_loss, max(allowed, 1e-6)) and apart <= allowed:
        yield Violation("mathematics", f"the test loss is {measured} instead of {expected.test_loss}")


def _rounding(case: Case, seen: Evidence, expected: Truth) -> float:
    """How far plain PyTorch comes from itself when its first weights are off by one place in the last."""
    other = truth(case.program, grain(case, seen), seen.legs[0].way.served, nudged=True)
    return _apart({**other.parameters, **other.buffers}, {**expected.parameters, **expected.buffers})[0]


def _apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """The largest difference of a tensor, relative to the norm of all; and whose it is."""
    names = [name for name, tensor in expected.items() if tensor.is_floating_point()]
    missing = [name for name in names if name not in found]
    if missing:
        return float("inf"), f"{missing[0]} is missing,"
    norm = float(torch.cat([expected[name].double().flatten() for name in names]).norm())
    by_name = {name: float((found[name].double() - expected[name].double()).norm()) / norm for name in names}
    worst = max(by_name, key=lambda name: by_name[name] if by_name[name] == by_name[name] else float("inf"))
    return by_name[worst], worst


def _off(found: float | None, expected: float, allowed: float) -> bool:
    return found is None or not abs(found - expected) <= allowed * max(1.0, abs(expected))


def _learns(case: Case, seen: Evidence, expected: Truth, found: dict[str, Tensor]) -> Iterator[Violation]:
    """The model has come a part of the way that plain PyTorch goes: in its loss, and with each of its parameters."""
    model = make_model(case.program)
    begun = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.load_state_dict(found, strict=False)  # what is tied is saved once
    reached = whole_loss(model, case.program)
    kept = min(leg.way.kept * leg.way.steps_of_one(case.program) for leg in seen.legs)
    wanted = expected.first - LEARNED * kept * (expected.first - expected.last)
    if expected.first - expected.last > LESSON * abs(expected.first) and not reached <= wanted:
        words = f"from {expected.first:.4g} to {reached:.4g}, where plain PyTorch comes to {expected.last:.4g}"
        yield Violation("learning", words)
    moved = {name: _distance(parameter, begun[name]) for name, parameter in model.named_parameters()}
    there = {name: _distance(parameter, begun[name]) for name, parameter in expected.parameters.items()}
    still = [name for name, way in there.items() if not moved[name] >= MOVED * kept * way]
    # what a codec that sends the largest few leaves out comes later, and a short run ends before that
    if still and not any(leg.way.codec.startswith("topk") for leg in seen.legs):
        name = still[0]
        words = f"{name} has moved by {moved[name]:.2g}, where plain PyTorch moves it by {there[name]:.2g}"
        yield Violation("learning", words)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.detach().double() - other.double()).norm())


# ---- who is blamed


def _culprits(seen: Evidence) -> Iterator[Violation]:
    """Whoever is named as lost by a fault was hit, and whoever was killed is named."""
    hit = {pid for one in seen.hits for pid in one["pids"]}
    violent = {one["kind"] for one in seen.hits} & {"launcher", "everything", "loader"}
    lost = [event for event in seen.events if event.get("kind") == "member_lost" and event.get("role") == "worker"]
    for event in lost:
        faulty = re.search(r"signal|frozen|SIGSTOP|no progress|silent", str(event.get("cause")))
        if faulty and event["pid"] not in hit and not violent:
            yield Violation("culprit", f"worker {event['rank']} ({event['cause']}) was not hurt by anyone")
    named = {int(event["pid"]) for event in lost}
    for one in _killed(seen):
        if one not in named and not violent:
            yield Violation("culprit", f"process {one} was killed, and nobody says so")


def _killed(seen: Evidence) -> Iterable[int]:
    # at the very end, and where all go at once, nobody may be left to say it
    return [pid for one in seen.hits if one["kind"] in ("kill", "freeze") for pid in one["pids"]]
