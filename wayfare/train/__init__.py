"""Training: `fit`, `evaluate`, callbacks, and the history of a run."""

from wayfare.see.report.observations import Observation
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

__all__ = [
    "Callback", "ClipGradients", "EarlyStopping", "GradientFlow", "History", "KeepBest", "Observation", "Run",
    "Schedule", "TensorBoard", "evaluate", "fit",
]  # fmt: skip
