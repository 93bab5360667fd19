"""Reverse-mode differentiation through the recorded graph, and what is built on it (as `torch.autograd`)."""

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
