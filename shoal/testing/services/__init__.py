"""Real services for tests, benchmarks and the guide: HDFS and S3 on this machine, on loopback, in a folder, gone again.

``scripts/services`` is their command line; `shared` is how processes that work together use one.
"""

from __future__ import annotations

from shoal.testing.services.fetching import ServiceUnavailable
from shoal.testing.services.running import Running, Service
from shoal.testing.services.sharing import shared, shared_by_name
from shoal.testing.services.table import service

__all__ = ["Running", "Service", "ServiceUnavailable", "service", "shared", "shared_by_name"]
