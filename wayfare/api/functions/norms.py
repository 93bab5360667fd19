"""The p-norm of vectors, and what follows from it: distance, rescaling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.api.functions._along import cast_first, check_floating, check_tensor
from wayfare.api.functions._public import add_method, in_place_form, method, promoted
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import normal_dim, normal_dims
from wayfare.core.tensor import Tensor, wrap

__all__ = ["dist", "renorm"]


def vector_norm(
    op: str, input: Tensor, p: float = 2.0, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The p-norm over some dimensions, or all; `op` is the name of the public function in errors."""
    input = cast_first(op, input, dtype)
    check_floating(op, input)
    dims = normal_dims(op, dim, input.ndim)
    order = float(p)
    if (order < 0 or order == math.inf) and any(input.shape[d] == 0 for d in dims):
        raise ShapeError(f"{op}: the {p}-norm is not defined over the empty dimensions of {input.spec}")
    if order != 0 and math.prod([input.shape[d] for d in dims]) == 1:
        order = 1.0  # All norms of one number are its absolute value; its square might overflow.
    attrs = {"dim": dims, "keepdim": bool(keepdim), "p": order}
    return apply(REGISTRY["vector_norm"], (input,), attrs)  # type: ignore[no-any-return]


@method
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of `input - other`."""
    return vector_norm("dist", promoted(REGISTRY["sub"], (input, other)), p)


@method
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scale each slice along `dim` whose p-norm is larger than `maxnorm` down to it."""
    check_tensor("renorm", input)
    kept = normal_dim("renorm", dim, input.ndim)
    if input.ndim < 2 or p <= 0 or maxnorm < 0:
        raise ArgumentError(f"renorm: needs a tensor of two dimensions, a positive p and a maxnorm of at least 0, "
                            f"not {input.spec}, {p} and {maxnorm}")  # fmt: skip
    sizes = vector_norm("renorm", input, p, [d for d in range(input.ndim) if d != kept], True)
    one = wrap(np.ones((), sizes.dtype.numpy))
    # The small number keeps a slice just above the limit from being scaled by the rounding of its own norm.
    factor = apply(REGISTRY["where"], (sizes > maxnorm, maxnorm / (sizes + 1e-7), one))
    return promoted(REGISTRY["mul"], (input, factor))


def _renorm_copy(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    # The norm keeps its input for the gradient: that must not be the memory that is written.
    return renorm(apply(REGISTRY["clone"], (input,)), p, dim, maxnorm)


add_method("renorm_", in_place_form(_renorm_copy, "renorm"))
