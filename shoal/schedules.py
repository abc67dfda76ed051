"""Learning-rate schedules, by their public name: ``from shoal.schedules import Cosine``."""

from shoal.train.schedules import Constant, Cosine, Function, Linear, Schedule, Steps, TorchSchedule

__all__ = ["Constant", "Cosine", "Function", "Linear", "Schedule", "Steps", "TorchSchedule"]
