"""The services that there are."""

from __future__ import annotations

from shoal.testing.services.hdfs import Hdfs
from shoal.testing.services.running import Service
from shoal.testing.services.s3 import S3

SERVICES: dict[str, Service] = {one.name: one for one in (Hdfs(), S3())}


def service(name: str) -> Service:
    return SERVICES[name]
