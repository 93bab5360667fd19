"""Methods of Tensor that belong to no family of functions: backward and friends."""

from __future__ import annotations

from typing import Any

from wayfare.autograd.backward import backward as _run
from wayfare.functions._public import method
from wayfare.tensor import Tensor


@method
def is_inference(self: Tensor) -> bool:
    """Was it made under `inference_mode`?"""
    return self._extras is not None and "inference" in self._extras


@method
def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Sum into `.grad` of every leaf the derivative of this tensor (see `wf.autograd.backward`)."""
    _run(self, gradient, retain_graph, create_graph, inputs=inputs)
