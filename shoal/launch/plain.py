"""A process that the user started with ``python script.py``: what a launcher would have settled is settled here.

Initial weights are a function of the seed only if PyTorch's generator is seeded before the script builds its model,
and importing this package is the one thing that certainly comes before. Whoever seeds the generator wins. PyTorch
itself is not imported for that: where the script does so later, the generator is seeded then.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from shoal.core.errors import UserError, WorkerFailed
from shoal.core.seeds import init_seed
from shoal.core.wrapping import for_stream

_UNSEEDED_FROM = 1 << 32  # PyTorch's own start value has 53 random bits; people choose small seeds


def settle_plain_process() -> None:
    """Seed an unseeded generator as a worker's is by default, and show a user's mistakes without a traceback."""
    if "torch" in sys.modules:
        _seed(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _SeedsWhenImported())
    previous = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, UserError | WorkerFailed):
            previous(kind, error, traceback)
            return
        # what a worker's failure says begins with who failed, and has the user's frames
        words = str(error) if isinstance(error, WorkerFailed) else f"shoal: error: {error}"
        print(for_stream(words, sys.stderr), file=sys.stderr)
        if not hasattr(sys, "ps1") and not sys.flags.interactive:  # at a prompt, life goes on
            sys.exit(error.exit_status)

    sys.excepthook = show


def _seed(torch: Any) -> None:
    if torch.initial_seed() >= _UNSEEDED_FROM:
        torch.manual_seed(init_seed(0))


class _SeedsWhenImported(MetaPathFinder):
    """Has its effect once, at the first import of PyTorch, which goes as ever but for the seed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Seeding(spec.loader)
        return spec


class _Seeding(Loader):
    """Another loader, and the seed after it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _seed(module)
