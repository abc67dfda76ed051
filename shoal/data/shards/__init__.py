"""Reading prepared data sets: Parquet shards beside a manifest, from anywhere, in an order that suits blocks."""

from shoal.data.shards.source import ShardSource

__all__ = ["ShardSource"]
