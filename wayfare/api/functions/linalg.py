"""Linear algebra under its top-level names, which are methods too: `wf.det(x)`, `x.inverse()`, `wf.trace(x)`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions import decompose, systems
from wayfare.api.functions._along import check_tensor, check_tensors
from wayfare.api.functions._linalg import identity, lower, reshaped, run, stretched, total, transposed
from wayfare.api.functions._linalg import upper as _upper
from wayfare.api.functions._public import add_method, as_dtype_of, common_dtype, method
from wayfare.api.functions.decompose import QR, PackedLU, PackedLUAndInfo, householder_product, reflect, unpack_lu
from wayfare.api.functions.matmul import matmul
from wayfare.api.functions.systems import matrix_power
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.dispatch import apply
from wayfare.core.errors import ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import broadcast, normal_dim
from wayfare.core.tensor import Tensor, on_device_of
from wayfare.ops.linalg._matrix import check_matrix

__all__ = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "cross", "det", "geqrf", "inverse", "logdet",
    "lu", "lu_solve", "lu_unpack", "matrix_exp", "matrix_power", "orgqr", "ormqr", "pinverse", "qr", "slogdet", "svd",
    "trace", "triangular_solve", "vander",
]  # fmt: skip


class SignAndLog(NamedTuple):
    """What `slogdet` gives."""

    sign: Tensor
    logabsdet: Tensor


class SVDWithV(NamedTuple):
    """What `wf.svd` gives: V, where `wf.linalg.svd` gives its transpose."""

    U: Tensor
    S: Tensor
    V: Tensor


class PackedQR(NamedTuple):
    """What `geqrf` gives: R above the diagonal, reflections below, and their scales."""

    a: Tensor
    tau: Tensor


class SolutionAndMatrix(NamedTuple):
    """What `triangular_solve` gives."""

    solution: Tensor
    cloned_coefficient: Tensor


# -- functions of a matrix ----------------------------------------------------------------------------------


@method
@follows_autocast(FLOAT32_ON_CPU)
def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    check_tensor("trace", input)
    if input.ndim != 2:
        raise ShapeError(f"trace: needs a matrix, not {input.spec}")
    diagonal = apply(REGISTRY["diagonal"], (input,), {"offset": 0, "dim1": 0, "dim2": 1})
    return total(diagonal, 0)


@method
def det(input: Tensor) -> Tensor:
    """The determinant of a square matrix, or of each of a stack of them."""
    return run("det", input)  # type: ignore[no-any-return]


@method
def slogdet(input: Tensor) -> SignAndLog:
    """The sign of the determinant and the logarithm of its size, which do not overflow."""
    return SignAndLog(*run("slogdet", input))


@method
@follows_autocast(FLOAT32_ON_CPU)
def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant: -inf if it is 0, nan if it is negative."""
    sign, logarithm = run("slogdet", input)
    nan = stretched(on_device_of(input, np.full((), np.nan, input.dtype.numpy)), *sign.shape)
    return apply(REGISTRY["where"], (sign < 0, nan, logarithm))  # type: ignore[no-any-return]


@method
def matrix_exp(input: Tensor) -> Tensor:
    """The exponential of a square matrix: 1 + A + A² / 2 + A³ / 6 + …"""
    return run("matrix_exp", input)  # type: ignore[no-any-return]


@method
def inverse(input: Tensor) -> Tensor:
    """The inverse of a square matrix (`wf.linalg.inv`)."""
    return systems.inv(input)


@method
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverse (`wf.linalg.pinv`)."""
    return systems.pinv(input, rcond)


add_method("matrix_power", matrix_power)


# -- Cholesky and triangles ---------------------------------------------------------------------------------


@method
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The Cholesky factor of a symmetric positive definite matrix (`wf.linalg.cholesky`)."""
    return decompose.cholesky(input, upper=upper)


@method
@follows_autocast(FLOAT32_ON_CPU)
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a positive definite matrix, given its Cholesky factor."""
    check_tensor("cholesky_inverse", L)
    check_matrix("cholesky_inverse", L.spec)
    eye = stretched(identity(L, L.shape[-1]), *L.shape)
    root = systems.solve(_triangle(L, upper), eye)
    return matmul(root, transposed(root)) if upper else matmul(transposed(root), root)


def _triangle(L: Tensor, upper: bool) -> Tensor:
    """Only the triangle counts. Its gradient, as in PyTorch, is that of a full matrix."""
    values = (_upper if upper else lower)(L.detach())
    return values + (L - L.detach()) if L.requires_grad else values


@method
@follows_autocast(FLOAT32_ON_CPU)
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The X with `A @ X = B`, given the Cholesky factor of A."""
    for given in (B, L):
        check_tensor("cholesky_solve", given)
        check_matrix("cholesky_solve", given.spec)
    factor = _triangle(L, upper)
    first, second = (transposed(factor), factor) if upper else (factor, transposed(factor))
    return systems.solve(second, systems.solve(first, B))


@method
@follows_autocast(FLOAT32_ON_CPU)
def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> SolutionAndMatrix:
    """The X with `A @ X = b` for a triangular A (`wf.linalg.solve_triangular`), and a copy of A."""
    matrix, side = (transposed(A), not upper) if transpose else (A, upper)
    solution = systems.solve_triangular(matrix, b, upper=side, unitriangular=unitriangular)
    return SolutionAndMatrix(solution, A.expand(*solution.shape[:-2], *A.shape[-2:]).clone())


# -- decompositions -----------------------------------------------------------------------------------------


@method
def qr(input: Tensor, some: bool = True) -> QR:
    """`input = Q @ R` (`wf.linalg.qr`); `some=False` gives a square Q."""
    return decompose.qr(input, "reduced" if some else "complete")


@method
def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> SVDWithV:
    """`input = U @ diag(S) @ V.mT`; `some=False` gives square U and V (see `wf.linalg.svd`)."""
    if not compute_uv:
        check_tensor("svd", input)
        *lead, rows, columns = input.shape
        zeros = (on_device_of(input, np.zeros((*lead, n, n), input.dtype.numpy)) for n in (rows, columns))
        return SVDWithV(next(zeros), run("svdvals", input), next(zeros))
    u, s, vh = decompose.svd(input, full_matrices=not some)
    return SVDWithV(u, s, transposed(vh))


@method
def geqrf(input: Tensor) -> PackedQR:
    """QR as LAPACK packs it, for `ormqr` and `wf.linalg.householder_product`. It has no gradient; `qr` has."""
    return PackedQR(*run("geqrf", input))


@method
@follows_autocast(FLOAT32_ON_CPU)
def ormqr(input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """`Q @ other` for the Q that `geqrf` packed; `transpose` takes `Q.mT`, `left=False` multiplies from the right."""
    check_tensor("ormqr", input)
    if input.ndim < 2 or other.ndim < 2 or tau.ndim != input.ndim - 1:
        raise ShapeError(f"ormqr: needs matrices and one scale for each reflection, not {input.spec}, {tau.spec} and "
                         f"{other.spec}")  # fmt: skip
    if not left:
        return transposed(ormqr(input, tau, transposed(other), transpose=not transpose))
    if other.shape[-2] != input.shape[-2]:
        raise ShapeError(f"ormqr: a Q of {input.shape[-2]} rows cannot multiply {other.spec}")
    return reflect(input, tau, other, last_first=not transpose)


orgqr = householder_product
add_method("orgqr", orgqr)


@method
def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> PackedLU | PackedLUAndInfo:
    """The packed LU factors and pivots (`wf.linalg.lu_factor`)."""
    found = decompose.lu_factor_ex(A, pivot=pivot)
    return found if get_infos else PackedLU(*found[:2])


@method
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """The X with `A @ X = b` from the factors of A (`wf.linalg.lu_solve`)."""
    return decompose.lu_solve(LU_data, LU_pivots, b)


def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> decompose.LU:
    """P, L and U from the packed form; what is not asked for is empty."""
    p, l, u = unpack_lu(LU_data, LU_pivots)
    nothing = on_device_of(LU_data, np.zeros(0, LU_data.dtype.numpy))
    data = (l, u) if unpack_data else (nothing, nothing)
    return decompose.LU(p if unpack_pivots else nothing, *data)


# -- vectors ------------------------------------------------------------------------------------------------


def cross_product(op: str, input: Tensor, other: Tensor, dim: int) -> Tensor:
    """The cross product along one dimension, after promotion and broadcasting."""
    check_tensors(op, input, other)
    dtype = common_dtype(op, (input, other))
    shape = broadcast(op, tuple(input.shape), tuple(other.shape))
    a, b = (stretched(as_dtype_of(t, dtype), *shape) for t in (input, other))
    return apply(REGISTRY["cross"], (a, b), {"dim": normal_dim(op, dim, len(shape))})  # type: ignore[no-any-return]


@method
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product of vectors of 3 elements, along `dim` or the first dimension of size 3."""
    check_tensor("cross", input)
    if dim is None:
        found = [d for d, size in enumerate(input.shape) if size == 3]
        if not found:
            raise ShapeError(f"cross: no dimension of {input.spec} has size 3")
        dim = found[0]
    return cross_product("cross", input, other, dim)


def powers(x: Tensor, count: int) -> Tensor:
    """1, x, x², … along a new last dimension, each from the one before."""
    if x.ndim == 0:
        x = reshaped(x, 1)
    column = reshaped(x, *x.shape, 1)
    ones = stretched(on_device_of(x, np.ones((), x.dtype.numpy)), *column.shape)
    if count < 2:
        return ones if count else stretched(ones, *x.shape, 1)[..., :0]
    pieces = [ones, stretched(column, *x.shape, count - 1)]
    return apply(REGISTRY["cat"], tuple(pieces), {"dim": x.ndim}).cumprod(-1)  # type: ignore[no-any-return]


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix of a vector: its powers as columns, the highest first unless `increasing`."""
    check_tensor("vander", x)
    if x.ndim != 1:
        raise ShapeError(f"vander: needs a vector, not {x.spec}")
    out = powers(x, x.shape[0] if N is None else N)
    return out if increasing else out.flip(-1)
