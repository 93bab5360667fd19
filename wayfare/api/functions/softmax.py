"""softmax and log_softmax as functions and methods."""

from __future__ import annotations

from typing import Any

from wayfare.api.functions._along import along, cast_first, check_floating
from wayfare.api.functions._public import method
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor

__all__ = ["softmax", "log_softmax"]


@method
def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """`exp(input) / sum(exp(input))` along `dim`: positive numbers that sum to one."""
    input = cast_first("softmax", input, dtype)
    check_floating("softmax", input)
    return along(REGISTRY["softmax"], input, dim, "softmax")  # type: ignore[no-any-return]


@method
def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """The logarithm of `softmax`, computed without overflow."""
    input = cast_first("log_softmax", input, dtype)
    check_floating("log_softmax", input)
    return along(REGISTRY["log_softmax"], input, dim, "log_softmax")  # type: ignore[no-any-return]
