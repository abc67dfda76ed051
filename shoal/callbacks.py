"""What watches a run, by its public name: ``from shoal.callbacks import EarlyStopping``."""

from shoal.train.callbacks import (
    Callback,
    EarlyStopping,
    History,
    LearningRateMonitor,
    Progress,
    RunInfo,
    Stop,
    TensorBoard,
)

__all__ = [
    "Callback",
    "EarlyStopping",
    "History",
    "LearningRateMonitor",
    "Progress",
    "RunInfo",
    "Stop",
    "TensorBoard",
]
