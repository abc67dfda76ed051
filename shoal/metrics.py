"""Metrics, by their public name: ``from shoal.metrics import accuracy``."""

from shoal.train.metrics import accuracy

__all__ = ["accuracy"]
