"""Reverse-mode differentiation through the recorded graph, and what is built on it (as `torch.autograd`)."""

from typing import TYPE_CHECKING, NoReturn

from wayfare.autograd import functional, graph
from wayfare.autograd.backward import backward, grad
from wayfare.autograd.function import Function, once_differentiable
from wayfare.autograd.gradcheck import gradcheck, gradgradcheck
from wayfare.autograd.modes import (
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_anomaly_enabled,
    no_grad,
    saved_tensors_hooks,
    set_detect_anomaly,
    set_grad_enabled,
)
from wayfare.core.missing_names import no_such_name as _no_such_name

__all__ = [
    "Function",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_anomaly_enabled",
    "no_grad",
    "once_differentiable",
    "saved_tensors_hooks",
    "set_detect_anomaly",
    "set_grad_enabled",
]


if not TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> NoReturn:
        raise _no_such_name(__name__, name)
