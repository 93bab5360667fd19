"""Training: `fit`, `evaluate`, callbacks, and the history of a run."""

from wayfare.train.callbacks import Callback, ClipGradients, EarlyStopping, KeepBest, Schedule
from wayfare.train.history import History
from wayfare.train.loop import Run, evaluate, fit

__all__ = [
    "Callback", "ClipGradients", "EarlyStopping", "History", "KeepBest", "Run", "Schedule", "evaluate", "fit",
]  # fmt: skip
