"""``python -m shoal`` is the command ``shoal``."""

from __future__ import annotations

import sys

from shoal.cli.main import main

sys.exit(main())
