"""The callbacks of a run whose script asks for none."""

from __future__ import annotations

from shoal.core.config import Config
from shoal.train.callbacks.base import Callback
from shoal.train.callbacks.history import History
from shoal.train.callbacks.progress import Progress
from shoal.train.callbacks.tensorboard import TensorBoard


def default_callbacks(config: Config) -> list[Callback]:
    """Progress and history, and TensorBoard where `config` asks for it."""
    callbacks: list[Callback] = [Progress(), History()]
    if config.tensorboard:
        callbacks.append(TensorBoard())
    return callbacks
