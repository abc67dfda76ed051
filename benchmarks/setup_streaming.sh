#!/bin/sh
# Make .venv-streaming at the root of the repository: Shoal beside MosaicML Streaming and WebDataset, for loading.py.
# An environment of its own: MosaicML Streaming needs torchvision, which brings a build of torch with it.
# PYTHON chooses the interpreter (default python3). Running it again brings an existing environment up to date.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv="$root/.venv-streaming"
pip="$venv/bin/python -m pip install --quiet"

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
$pip "$(grep '^torch==' "$root/constraints.txt")"
$pip "$(grep '^torch==' "$root/constraints.txt")" --requirement "$root/benchmarks/requirements-streaming.txt"
$pip --editable "$root[images]"
"$venv/bin/python" - <<'PYTHON'
import importlib.metadata as metadata
for name in ("torch", "torchvision", "mosaicml-streaming", "webdataset", "simplejpeg", "pillow", "pyarrow", "shoal"):
    print(f"{name:20} {metadata.version(name)}")
PYTHON
