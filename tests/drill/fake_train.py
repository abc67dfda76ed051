"""Stands in for `shoal train`: real processes to be hurt, replaced and told of in events; but nothing is computed.

The name of the script says how it goes: good.py, loses.py (a sample is missed), fails.py (ends with status 1), stuck.py
(commits nothing after a worker is lost).
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 60
STEP_S = 0.01
FROZEN_S = 1.5  # far above the stops of a slowed worker


class FakeRun:
    def __init__(self, script: str, run_dir: Path, workers: int) -> None:
        self.script, self.run_dir = script, run_dir
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.events = (run_dir / "events.jsonl").open("a")
        self.view = 0
        self.workers = [self.start(rank) for rank in range(workers)]
        self.stopped: dict[int, float] = {}
        self.losses = 0
        self.start_coordinator()

    def tell(self, kind: str, **fields: Any) -> None:
        self.events.write(json.dumps({"time": time.time(), "kind": kind, **fields}) + "\n")
        self.events.flush()

    def start(self, rank: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "600"])
        self.tell("member_joined", role="worker", rank=rank, host="here", pid=process.pid)
        return process

    def start_coordinator(self) -> None:
        self.coordinator = subprocess.Popen(["sleep", "600"])
        new = self.run_dir / ".coordinator.tmp"
        new.write_text(json.dumps({"address": "", "pid": self.coordinator.pid}))
        new.replace(self.run_dir / "coordinator.json")

    def tell_view(self) -> None:
        self.view += 1
        pids = [one.pid for one in self.workers]
        self.tell("view", number=self.view, members=[f"worker {rank}" for rank in range(len(pids))], pids=pids)

    def look(self) -> bool:
        """Replace who is lost; returns whether all are there and run."""
        whole = True
        for rank, worker in enumerate(self.workers):
            if self.is_frozen(worker.pid):
                whole = False
                if time.monotonic() - self.stopped.setdefault(worker.pid, time.monotonic()) > FROZEN_S:
                    worker.kill()
                    worker.wait()
            else:
                self.stopped.pop(worker.pid, None)
            if worker.poll() is not None:
                self.tell("member_lost", role="worker", rank=rank, host="here", pid=worker.pid, cause="lost")
                self.losses += 1
                self.workers[rank] = self.start(rank)
                self.tell_view()
        if self.coordinator.poll() is not None:
            self.start_coordinator()
        return whole and not (self.script == "stuck.py" and self.losses)

    @staticmethod
    def is_frozen(pid: int) -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def run(self) -> int:
        self.tell("run_started", strategy="allreduce", workers=len(self.workers), total_steps=STEPS)
        self.tell_view()
        done = 0
        while done < STEPS:
            time.sleep(STEP_S)
            if self.look():
                done += 1
                self.tell("step", cursor={"step": done}, loss=1.0 / done, step_s=STEP_S)
        if self.script == "fails.py":
            print("the script has failed")
            return 1
        missed = int(self.script == "loses.py" and self.losses > 0)
        coverage = {"expected": 600, "once": 600 - missed, "missed": missed, "repeated": 0}
        summary = {"strategy": "allreduce", "status": "completed", "coverage": coverage, "final": {"train_loss": 0.1}}
        (self.run_dir / "summary.json").write_text(json.dumps(summary))
        self.tell("run_ended", status="completed")
        return 0

    def close(self) -> None:
        for process in (*self.workers, self.coordinator):
            process.kill()
            process.wait()


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = sys.argv[1:]
    given = dict(zip(words[1::2], words[2::2], strict=False))
    run = FakeRun(Path(words[0]).name, Path(given["--run-dir"]), int(given.get("--workers", 3)))
    try:
        return run.run()
    except KeyboardInterrupt:
        return 130
    finally:
        run.close()


if __name__ == "__main__":
    sys.exit(main())
