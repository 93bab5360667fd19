"""softmax and its relatives."""

from __future__ import annotations

import warnings
from typing import Any

from wayfare.api.functions import softmax as functions
from wayfare.api.functions._along import check_tensor
from wayfare.api.functions.random import rand_like
from wayfare.core.tensor import Tensor

__all__ = ["softmax", "log_softmax", "softmin", "gumbel_softmax"]


def _dim(name: str, input: Tensor, dim: int | None) -> int:
    check_tensor(name, input)
    if dim is not None:
        return dim
    warnings.warn(f"{name}: give dim; without it the first or second dimension is guessed", stacklevel=3)
    return 0 if input.ndim in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """`exp(input) / sum(exp(input))` along `dim`: positive numbers that sum to one."""
    return functions.softmax(input, _dim("softmax", input, dim), dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """The logarithm of `softmax`, computed without overflow."""
    return functions.log_softmax(input, _dim("log_softmax", input, dim), dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """`softmax` of the negative: the smallest element gets the most."""
    dim = _dim("softmin", input, dim)
    return functions.softmax(-input, dim, dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A random, differentiable choice: softmax of the scores plus Gumbel noise, at temperature `tau`.

    With `hard` the choice is a one-hot vector whose gradient is that of the soft one.
    """
    check_tensor("gumbel_softmax", logits)
    noise = -(-rand_like(logits).clamp(min=1e-20).log()).log()
    soft = functions.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    index = soft.max(dim, keepdim=True).indices
    one_hot = logits.detach() * 0
    one_hot = one_hot.scatter(dim, index, 1.0)
    return one_hot - soft.detach() + soft
