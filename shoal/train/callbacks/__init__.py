"""What watches a run: progress, history, early stopping, TensorBoard, or your own."""

from shoal.train.callbacks.base import Callback, RunInfo, Stop
from shoal.train.callbacks.defaults import default_callbacks
from shoal.train.callbacks.early_stopping import EarlyStopping
from shoal.train.callbacks.history import History
from shoal.train.callbacks.learning_rate import LearningRateMonitor
from shoal.train.callbacks.progress import Progress
from shoal.train.callbacks.tensorboard import TensorBoard

__all__ = [
    "Callback",
    "EarlyStopping",
    "History",
    "LearningRateMonitor",
    "Progress",
    "RunInfo",
    "Stop",
    "TensorBoard",
    "default_callbacks",
]
