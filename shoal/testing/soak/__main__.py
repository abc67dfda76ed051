"""``python -m shoal.testing.soak``."""

from __future__ import annotations

import sys

from shoal.testing.soak.command import main

sys.exit(main(sys.argv[1:]))
