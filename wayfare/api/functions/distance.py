"""Distances and similarities of vectors."""

from __future__ import annotations

import math

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_floating, check_tensor, check_tensors
from wayfare.api.functions._public import as_dtype_of, common_dtype
from wayfare.api.functions.arithmetic import sqrt
from wayfare.api.functions.elementwise import isfinite, where
from wayfare.api.functions.matrix_norms import vector_norm
from wayfare.api.functions.reduce import sum as total
from wayfare.core.autocast import FLOAT32
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, DTypeError, OperationError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import broadcast
from wayfare.core.tensor import Tensor, on_device_of

__all__ = ["cdist", "pairwise_distance", "cosine_similarity", "pdist"]


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of `x1 - x2 + eps` over the last dimension."""
    check_tensor("pairwise_distance", x1)
    if x1.shape[-1:] != x2.shape[-1:] and 1 not in (*x1.shape[-1:], *x2.shape[-1:]):
        broadcast("pairwise_distance", tuple(x1.shape), tuple(x2.shape))
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along `dim`; lengths below `eps` count as `eps`."""
    dtype = common_dtype("cosine_similarity", (x1, x2))
    x1, x2 = as_dtype_of(x1, dtype), as_dtype_of(x2, dtype)
    check_floating("cosine_similarity", x1)
    shape = broadcast("cosine_similarity", tuple(x1.shape), tuple(x2.shape))
    x1, x2 = x1.expand(shape), x2.expand(shape)
    lengths = [vector_norm(x, 2.0, dim, True).clamp_min(eps) for x in (x1, x2)]
    return total((x1 / lengths[0]) * (x2 / lengths[1]), dim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distance of every two rows of a matrix, in the order (0, 1), (0, 2), …, (1, 2), …"""
    if input.ndim != 2:
        raise ShapeError(f"pdist: needs a matrix of row vectors, this is {input.spec}")
    if p < 0:
        raise OperationError(f"pdist: p must not be negative, it is {p}")
    first, second = np.triu_indices(input.shape[0], 1)
    difference = input.index_select(0, on_device_of(input, first)) - input.index_select(0, on_device_of(input, second))
    return _length("pdist", difference, p)


@follows_autocast(FLOAT32)
def cdist(
    x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Tensor:
    """The p-norm distance of each row of `x1` to each row of `x2`, for batches of matrices."""
    check_tensors("cdist", x1, x2)
    if x1.ndim < 2 or x2.ndim < 2:
        raise ShapeError(f"cdist: needs matrices of row vectors, not {x1.spec} and {x2.spec}")
    if x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: rows of different length, {x1.spec} and {x2.spec}",
                         fix="The last sizes must be equal.")  # fmt: skip
    if p < 0:
        raise OperationError(f"cdist: p must not be negative, it is {p}")
    if "use_mm_for_euclid_dist" not in compute_mode:
        raise ArgumentError(f"cdist: compute_mode {compute_mode!r} is unknown")
    dtype = common_dtype("cdist", (x1, x2))
    if not dtype.is_floating_point:
        raise DTypeError(f"cdist: needs floating-point numbers, not {x1.spec} and {x2.spec}")
    x1, x2 = as_dtype_of(x1, dtype), as_dtype_of(x2, dtype)
    broadcast("cdist", tuple(x1.shape[:-2]), tuple(x2.shape[:-2]))
    many = x1.shape[-2] > _MANY or x2.shape[-2] > _MANY
    if p == 2 and many and not compute_mode.startswith("donot"):
        return _by_products(x1, x2)
    return _length("cdist", x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _length(op: str, difference: Tensor, p: float) -> Tensor:
    """The norm of each difference; each of several largest ones has the whole gradient of p = inf, as in PyTorch."""
    if p != math.inf or difference.shape[-1] == 0:  # the distance of empty rows is 0
        return vector_norm(difference, p if difference.shape[-1] else 1, -1)
    check_floating(op, difference)
    return apply(REGISTRY["largest_distance"], (difference,), {"dim": (difference.ndim - 1,), "keepdim": False})  # type: ignore[no-any-return]


# From this many rows on PyTorch, too, uses the matrix product, unless told not to.
_MANY = 25


def _by_products(x1: Tensor, x2: Tensor) -> Tensor:
    """|a - b|² = |a|² + |b|² - 2ab: a matrix product in place of an array of all differences.

    Far from zero the squares would be so large that their difference is lost, so both are moved to where one of them
    has its middle; that changes no distance and no gradient.
    """
    middle = (x1 if x1.shape[-2] > x2.shape[-2] else x2).detach().mean(-2, keepdim=True)
    middle = where(isfinite(middle), middle, 0.0)
    x1, x2 = x1 - middle, x2 - middle
    square = total(x1 * x1, -1, True) + total(x2 * x2, -1).unsqueeze(-2) - 2 * (x1 @ x2.mT)
    same = square <= 0  # NaN stays NaN
    # Where two rows are the same the distance is 0 and has no slope; the root of a safe number keeps it finite.
    return where(same, 0.0, sqrt(where(same, 1.0, square)))  # type: ignore[no-any-return]
