"""NumPy's functions on tensors: `np.sin(t)` and `array + t` give a Tensor with its history, or say why not."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.errors import ArgumentTypeError
from wayfare.functions._public import promoted
from wayfare.functions.matmul import matmul
from wayfare.op import REGISTRY, Op
from wayfare.tensor import Tensor


def _op_of(ufunc: Any) -> Op | None:
    """The elementwise op whose forward is this very NumPy function."""
    return next((op for op in REGISTRY.values() if op.forward is ufunc), None)


def array_ufunc(self: Tensor, ufunc: Any, how: str, *inputs: Any, **options: Any) -> Any:
    """NumPy asks here before it would turn a tensor into a bare array and lose its gradient."""
    if ufunc is np.matmul and how == "__call__" and not options:
        return matmul(*inputs)
    op = _op_of(ufunc) if how == "__call__" else None
    if op is None or options:
        shown = ufunc.__name__ if how == "__call__" else f"{ufunc.__name__}.{how}"
        extra = f" with {', '.join(options)}=" if options else ""
        raise ArgumentTypeError(f"numpy.{shown}{extra} does not work on tensors",
                                fix="Use the function of wayfare, or .detach().numpy() for a plain array.")  # fmt: skip
    return promoted(op, inputs)


Tensor.__array_ufunc__ = array_ufunc  # type: ignore[attr-defined]
