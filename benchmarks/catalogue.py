"""Who takes part, and the command that starts each. Standard library only: peers may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

YARDSTICK = "ddp"
OURS = "shoal"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Peer:
    """A framework that can run a job. `reports` is how many workers report: their slowest clock counts."""

    name: str
    title: str
    package: str  # as pip knows it
    module: str
    launcher: str  # torchrun, python or shoal
    reports: int = 2
    probe: str = "pass"  # Python that raises where the peer cannot run

    def command(self, python: Path, workers: int, directory: Path) -> list[str]:
        """The command that runs the job which the environment names, with the peers' own `python`."""
        if self.launcher == "torchrun":
            torchrun = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(workers),
                "--module",
            ]
            return [str(python), *torchrun, self.module]
        if self.launcher == "shoal":
            script = ROOT / Path(*self.module.split(".")).with_suffix(".py")
            options = [
                "--workers",
                str(workers),
                "--set",
                "threads=1",
                "--run-dir",
                str(directory / "run"),
                "--json",
            ]
            return [str(python.with_name("shoal")), "train", str(script), *options]
        return [str(python), "-m", self.module]


PEERS = {
    peer.name: peer
    for peer in (
        Peer("ddp", "raw DDP", "torch", "benchmarks.runners.ddp", "torchrun"),
        Peer("lightning", "Lightning", "lightning", "benchmarks.runners.lightning_trainer", "torchrun"),
        Peer("accelerate", "Accelerate", "accelerate", "benchmarks.runners.accelerate_loop", "torchrun"),
        Peer("ray", "Ray Train", "ray", "benchmarks.runners.ray_train", "python"),
        Peer(
            "shoal",
            "Shoal",
            "shoal",
            "benchmarks.runners.shoal_trainer",
            "shoal",
            reports=1,
            probe="import shoal; shoal.Trainer",
        ),
    )
}
