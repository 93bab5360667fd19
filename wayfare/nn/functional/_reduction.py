"""The reduction of losses: none, mean or sum."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from wayfare.api.functions._public import as_dtype_of
from wayfare.core.callsite import INSIDE
from wayfare.core.errors import ArgumentError
from wayfare.core.spec import broadcast, promote
from wayfare.core.tensor import Tensor


def read_reduction(name: str, reduction: str, size_average: Any = None, reduce: Any = None) -> str:
    """"none", "mean" or "sum", also from the two older arguments."""
    if size_average is not None or reduce is not None:
        line, level = sys._getframe(1), 2
        while INSIDE[line.f_code.co_filename] and line.f_back is not None:  # modules call it from various depths
            line, level = line.f_back, level + 1
        warnings.warn(f"{name}: size_average and reduce are deprecated, use reduction=", stacklevel=level)
        if reduce is not None and not reduce:
            return "none"
        return "mean" if size_average is None or size_average else "sum"
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"{name}: {reduction!r} is not a reduction", fix="Use 'none', 'mean' or 'sum'.")
    return reduction


def in_one_dtype(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and targets in the dtype that holds both; targets that are no floats take that of the scores."""
    dtype = promote(input.dtype, target.dtype) if target.dtype.is_floating_point else input.dtype
    return as_dtype_of(input, dtype), as_dtype_of(target, dtype)


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """The losses, their mean or their sum."""
    if reduction == "mean":
        return losses.mean()
    return losses.sum() if reduction == "sum" else losses


def warn_of_broadcasting(name: str, input: Tensor, target: Tensor) -> None:
    """Warn of a target of another shape: (N, 1) against (N) would compare all pairs."""
    if input.shape != target.shape:
        broadcast(name, tuple(input.shape), tuple(target.shape))
        warnings.warn(
            f"{name}: input {list(input.shape)} and target {list(target.shape)} differ in shape and are broadcast; "
            "is that meant?",
            stacklevel=3,
        )
