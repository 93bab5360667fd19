"""`wf.optim.lr_scheduler`: how the learning rate changes as training goes on, under PyTorch's names."""

from wayfare.optim.lr_scheduler.base import LRScheduler
from wayfare.optim.lr_scheduler.compose import ChainedScheduler, SequentialLR
from wayfare.optim.lr_scheduler.cosine import CosineAnnealingLR, CosineAnnealingWarmRestarts
from wayfare.optim.lr_scheduler.cycle import CyclicLR, OneCycleLR
from wayfare.optim.lr_scheduler.factor import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from wayfare.optim.lr_scheduler.plateau import ReduceLROnPlateau

_LRScheduler = LRScheduler  # the name it had in older programs

__all__ = [
    "LRScheduler", "LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR",
    "PolynomialLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR", "ReduceLROnPlateau",
    "SequentialLR", "ChainedScheduler",
]  # fmt: skip
