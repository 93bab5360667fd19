"""Norms of vectors and matrices as `wf.linalg` has them, and what is read off them: condition number, rank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions import norms
from wayfare.api.functions._along import cast_first, check_floating, check_tensor
from wayfare.api.functions._linalg import reshaped, run, stretched, total
from wayfare.api.functions._public import method, promoted
from wayfare.api.functions.systems import cutoffs
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import float32, float64, normal_dim
from wayfare.core.tensor import Tensor, on_device_of

__all__ = ["norm"]

Order = float | str | None


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """`(sum |x| ** ord) ** (1 / ord)` over some dimensions, or all; infinity is the largest, 0 counts non-zeros."""
    return norms.vector_norm("vector_norm", x, ord, dim, keepdim, dtype=dtype)


def matrix_norm(
    A: Tensor, ord: float | str = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """A norm of matrices: "fro", "nuc", or ±1 (columns), ±2 (singular values), ±inf (rows)."""
    A = cast_first("matrix_norm", A, dtype)
    check_floating("matrix_norm", A)
    if not isinstance(dim, (tuple, list)) or len(dim) != 2:
        raise ArgumentError(f"matrix_norm: dim must name two dimensions, not {dim!r}")
    if A.ndim < 2:
        raise ShapeError(f"matrix_norm: needs a matrix, not {A.spec}")
    rows, columns = (normal_dim("matrix_norm", d, A.ndim) for d in dim)
    if rows == columns:
        raise ArgumentError(f"matrix_norm: dim={tuple(dim)} names one dimension twice")
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim)
    if ord not in ("nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise ArgumentError(f"matrix_norm: ord must be 'fro', 'nuc', ±1, ±2 or ±inf, not {ord!r}")
    others = [d for d in range(A.ndim) if d not in (rows, columns)]
    moved = apply(REGISTRY["permute"], (A,), {"dims": (*others, rows, columns)})
    out = _of_last_two(moved, ord)
    if keepdim:
        return reshaped(out, *(1 if d in (rows, columns) else size for d, size in enumerate(A.shape)))
    return out


def _of_last_two(A: Tensor, order: float | str) -> Tensor:
    if order == "nuc":
        return total(run("svdvals", A), -1)
    number = float(order)
    if abs(number) == 2:
        sums = run("svdvals", A)
    else:
        sums = vector_norm(A, 1, -2 if abs(number) == 1 else -1)
    if sums.shape[-1] == 0:
        raise ShapeError(f"matrix_norm: ord={order} is not defined for the empty matrices {A.spec}")
    pick = REGISTRY["amax" if number > 0 else "amin"]
    return apply(pick, (sums,), {"dim": (sums.ndim - 1,), "keepdim": False})  # type: ignore[no-any-return]


def linalg_norm(
    input: Tensor, ord: Order = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """A norm of a vector (one `dim`, or a 1-D tensor) or of matrices (two, or a 2-D tensor).

    Without `ord` it is the root of the sum of squares over `dim`, or over all elements.
    """
    check_tensor("norm", input)
    if ord is None:
        return vector_norm(input, 2, dim, keepdim, dtype=dtype)
    if dim is None:
        if input.ndim > 2:
            raise ShapeError(f"norm: ord={ord!r} needs a vector or a matrix, not {input.spec}", fix="Give dim.")
        dim = (0, 1) if input.ndim == 2 else (0,)
    dims = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    if len(dims) == 2:
        return matrix_norm(input, ord, dims, keepdim, dtype=dtype)
    if len(dims) != 1 or isinstance(ord, str):
        raise ArgumentError(f"norm: ord={ord!r} does not fit dim={dim!r}",
                            fix="A matrix norm takes two dimensions, a vector norm one.")  # fmt: skip
    return vector_norm(input, ord, dims, keepdim, dtype=dtype)


linalg_norm.__name__ = linalg_norm.__qualname__ = "norm"


@method
def norm(
    input: Tensor, p: float | str | None = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """The p-norm over `dim`, or over all elements; "fro" is the 2-norm, "nuc" the sum of singular values."""
    check_tensor("norm", input)
    if p == "nuc":
        if dim is None:
            dim = (0, 1) if input.ndim == 2 else dim
        return matrix_norm(input, "nuc", dim, keepdim, dtype=dtype)
    if p == "fro" or p is None:
        p = 2
    if isinstance(p, str):
        raise ArgumentError(f"norm: p must be a number, 'fro' or 'nuc', not {p!r}")
    return vector_norm(input, p, dim, keepdim, dtype=dtype)


def cond(A: Tensor, p: Order = None) -> Tensor:
    """The condition number of a matrix: its norm times that of its inverse, infinite for a singular one."""
    check_tensor("cond", A)
    if p is None or p in (2, -2):
        values = run("svdvals", A)
        attrs = {"dim": (values.ndim - 1,), "keepdim": False}
        if values.shape[-1] == 0:
            return on_device_of(A, np.zeros(tuple(values.shape[:-1]), A.dtype.numpy))
        largest = apply(REGISTRY["amax"], (values,), attrs)
        smallest = apply(REGISTRY["amin"], (values,), attrs)
        return smallest / largest if p == -2 else largest / smallest  # type: ignore[no-any-return]
    if A.shape[-1] == 0:
        return on_device_of(A, np.zeros(tuple(A.shape[:-2]), A.dtype.numpy))
    inverse = run("inv", A, strict=False)
    out = matrix_norm(A, p) * matrix_norm(inverse, p)
    infinite = stretched(on_device_of(A, np.full((), math.inf, A.dtype.numpy)), *out.shape)
    return apply(REGISTRY["where"], (out == out, out, infinite))  # type: ignore[no-any-return]


@follows_autocast(FLOAT32_ON_CPU)
def matrix_rank(
    A: Tensor, tol: float | Tensor | None = None, hermitian: bool = False, *, atol: float | Tensor | None = None,
    rtol: float | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """How many singular values are larger than max(atol, rtol times the largest)."""
    check_tensor("matrix_rank", A)
    if A.ndim < 2 or A.dtype not in (float32, float64):
        run("svdvals", A)
    if tol is not None:
        atol, rtol = tol, 0.0
    absolute, relative = cutoffs("matrix_rank", A, atol, rtol)
    A = A.detach()
    sizes = apply(REGISTRY["abs"], (run("eigvalsh", A, uplo="L"),)) if hermitian else run("svdvals", A)
    if sizes.shape[-1] == 0:
        return on_device_of(A, np.zeros(tuple(absolute.shape), np.int64))
    largest = apply(REGISTRY["amax"], (sizes,), {"dim": (sizes.ndim - 1,), "keepdim": False})
    limit = promoted(REGISTRY["maximum"], (absolute, relative * largest))
    return total(promoted(REGISTRY["gt"], (sizes, reshaped(limit, *limit.shape, 1))), -1)
