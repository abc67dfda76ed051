"""Until `shoal.comm.rendezvous` is there: a private directory."""

from __future__ import annotations

import shutil
import tempfile

try:
    from shoal.comm.rendezvous import make_rendezvous, remove_rendezvous
except ImportError:

    def make_rendezvous() -> str:
        return tempfile.mkdtemp(prefix="shoal-")

    def remove_rendezvous(rendezvous: str) -> None:
        shutil.rmtree(rendezvous, ignore_errors=True)
