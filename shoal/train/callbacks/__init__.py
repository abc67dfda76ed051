"""What watches a run: progress, history, early stopping, TensorBoard, or your own."""

from shoal.train.callbacks.base import Callback, RunInfo, Stop

__all__ = ["Callback", "RunInfo", "Stop"]
