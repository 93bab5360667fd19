"""Training: `fit`, `evaluate`, callbacks, and the history of a run."""

from wayfare.train.callbacks import (
    Callback,
    ClipGradients,
    EarlyStopping,
    GradientFlow,
    KeepBest,
    Schedule,
    TensorBoard,
)
from wayfare.train.history import History
from wayfare.train.loop import Run, evaluate, fit
from wayfare.train.observations import Observation

__all__ = [
    "Callback", "ClipGradients", "EarlyStopping", "GradientFlow", "History", "KeepBest", "Observation", "Run",
    "Schedule", "TensorBoard", "evaluate", "fit",
]  # fmt: skip
