#!/bin/sh
# Make .venv-peers at the root of the repository: torch, Shoal and the peers, all on the same build of torch.
# PYTHON chooses the interpreter (default python3). Running it again brings an existing environment up to date.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv="$root/.venv-peers"
pip="$venv/bin/python -m pip install --quiet"

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# torch first and alone: a peer that asks for "torch" must find it there, not choose a build of its own
$pip "$(grep '^torch==' "$root/constraints.txt")"
$pip --constraint "$root/constraints.txt" --requirement "$root/benchmarks/requirements-peers.txt"
$pip --constraint "$root/constraints.txt" --editable "$root[digits,images]"
"$venv/bin/python" - <<'PYTHON'
import importlib.metadata as metadata
import torch
for name in ("torch", "lightning", "accelerate", "ray", "torchft", "shoal"):
    print(f"{name:12} {metadata.version(name)}")
if torch.version.cuda is not None:
    print("note: this build of torch carries CUDA; the benchmark uses the CPU only")
PYTHON
