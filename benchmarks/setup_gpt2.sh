#!/bin/sh
# Make .venv-gpt2 at the root of the repository: torch, Shoal and Hugging Face's transformers, for gpt2_dropout.py.
# PYTHON chooses the interpreter (default python3). Running it again brings an existing environment up to date.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv="$root/.venv-gpt2"
pip="$venv/bin/python -m pip install --quiet"

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
$pip "$(grep '^torch==' "$root/constraints.txt")"
$pip --constraint "$root/constraints.txt" --requirement "$root/benchmarks/requirements-gpt2.txt"
$pip --constraint "$root/constraints.txt" --editable "$root"
