"""Runs as a drill sees them, made up: events and summaries of a calm run and of one that was hurt and recovered."""

from __future__ import annotations

import math
from typing import Any

from shoal.drill.inject import Hit
from shoal.drill.measure import Recorded
from shoal.drill.schedule import FaultPlan

STEPS = 100
HOST = "home"
ZERO = 1000.0


def joined(time: float, rank: int, pid: int) -> dict[str, Any]:
    return {"time": time, "kind": "member_joined", "role": "worker", "rank": rank, "host": HOST, "pid": pid}


def lost(time: float, rank: int, pid: int, cause: str) -> dict[str, Any]:
    return {
        "time": time,
        "kind": "member_lost",
        "role": "worker",
        "rank": rank,
        "host": HOST,
        "pid": pid,
        "cause": cause,
    }


def view(time: float, number: int, pids: list[int]) -> dict[str, Any]:
    names = [f"worker {rank} on {HOST}" for rank in range(len(pids))]
    return {"time": time, "kind": "view", "number": number, "members": names, "pids": pids}


def step(time: float, number: int) -> dict[str, Any]:
    cursor = {"epoch": 0, "batch": number, "step": number, "samples": number * 10}
    return {"time": time, "kind": "step", "cursor": cursor, "loss": math.exp(-number / 30), "step_s": 0.05}


def started(time: float) -> dict[str, Any]:
    return {"time": time, "kind": "run_started", "strategy": "allreduce", "workers": 3, "total_steps": STEPS}


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "strategy": "allreduce",
        "workers": 3,
        "status": "completed",
        "final": {"train_loss": 0.25, "test_loss": 0.3},
        "coverage": {"expected": 1000, "once": 1000, "missed": 0, "repeated": 0},
        "params_sha256": "0" * 64,
        **changes,
    }


def calm() -> Recorded:
    events = [joined(ZERO + rank / 100, rank, 101 + rank) for rank in range(3)]
    events += [started(ZERO + 0.1), view(ZERO + 0.1, 1, [101, 102, 103])]
    events += [step(ZERO + 0.1 + 0.05 * number, number) for number in range(1, STEPS + 1)]
    events.append({"time": ZERO + 5.2, "kind": "run_ended", "status": "completed"})
    return Recorded(events, summary(), 0, 5.3)


def hurt(**changes: Any) -> Recorded:
    """Worker 1 killed after step 20 (gap of 0.25 s), worker 2 frozen after step 50 (gap of 2.3 s), the coordinator
    killed after step 80 (no gap). Replacements come 0.5 s later."""
    events = [joined(ZERO + rank / 100, rank, 201 + rank) for rank in range(3)]
    events += [started(ZERO + 0.1), view(ZERO + 0.1, 1, [201, 202, 203])]
    time = ZERO + 0.1
    for number in range(1, STEPS + 1):
        if number == 21:
            events += [lost(time + 0.08, 1, 202, "killed by signal 9"), view(time + 0.1, 2, [201, 203])]
            time += 0.2
        if number == 31:
            events += [joined(time - 0.1, 1, 204), view(time, 3, [201, 203, 204])]
        if number == 51:
            events += [lost(time + 2.1, 1, 203, "frozen: no sign of life for 2.0 s"), view(time + 2.2, 4, [201, 204])]
            time += 2.25
        if number == 61:
            events += [joined(time - 0.1, 2, 205), view(time, 5, [201, 204, 205])]
        if number == 81:
            events.append({"time": time + 0.02, "kind": "warning", "message": "the coordinator was started again"})
        time += 0.05
        events.append(step(time, number))
    events.append({"time": time + 0.1, "kind": "run_ended", "status": "completed"})
    return Recorded(events, summary(**changes), 0, 8.2)


def time_of(run: Recorded, number: int) -> float:
    return next(event["time"] for event in run.of_kind("step") if event["cursor"]["step"] == number)


def hits(run: Recorded) -> list[Hit]:
    """The faults of `hurt`."""
    return [
        Hit(FaultPlan("kill", 20, 1), 20, time_of(run, 20) + 0.01, 202, f"worker 1 on {HOST}"),
        Hit(FaultPlan("freeze", 50, 1), 50, time_of(run, 50) + 0.01, 203, f"worker 1 on {HOST}"),
        Hit(FaultPlan("coordinator", 80), 80, time_of(run, 80) + 0.01, 300, "coordinator", time_of(run, 80) + 0.41),
    ]
