"""Decompositions as `wf.linalg` has them: Cholesky, QR, SVD, eigenvalues of symmetric matrices, LU, reflections."""

from __future__ import annotations

from typing import Any, NamedTuple

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_tensor, check_tensors
from wayfare.api.functions._linalg import (
    constant_like,
    identity,
    lower,
    part,
    reshaped,
    run,
    same_stacks,
    stretched,
    transposed,
)
from wayfare.api.functions._linalg import upper as upper_triangle
from wayfare.api.functions.matmul import matmul
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.errors import ArgumentError, ArgumentTypeError, LinAlgError, OperationError, ShapeError
from wayfare.core.tensor import Tensor

__all__ = [
    "cholesky", "cholesky_ex", "eigh", "eigvalsh", "householder_product", "lu", "lu_factor", "lu_factor_ex",
    "lu_solve", "qr", "svd", "svdvals",
]  # fmt: skip


class CholeskyAndInfo(NamedTuple):
    """What `cholesky_ex` gives: `info` is 0 for each positive definite matrix."""

    L: Tensor
    info: Tensor


class Eigen(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """What `svd` gives."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class LU(NamedTuple):
    """What `lu` gives: `A = P @ L @ U`."""

    P: Tensor
    L: Tensor
    U: Tensor


class PackedLU(NamedTuple):
    """What `lu_factor` gives: both factors in one matrix, and the rows that were exchanged, counted from 1."""

    LU: Tensor
    pivots: Tensor


class PackedLUAndInfo(NamedTuple):
    """What `lu_factor_ex` gives."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


# -- symmetric matrices -------------------------------------------------------------------------------------


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L with `A = L @ L.mT` for a symmetric positive definite A (or the upper one)."""
    out = run("cholesky", transposed(A) if upper else A, strict=True)
    return transposed(out) if upper else out


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyAndInfo:
    """`cholesky`, and instead of an error the order of the first leading minor that is not positive."""
    if upper:
        A = transposed(A)
    out = run("cholesky", A, strict=check_errors)
    info = run("cholesky_info", A.detach())
    return CholeskyAndInfo(transposed(out) if upper else out, info)


def _uplo(op: str, value: str) -> str:
    if not isinstance(value, str) or value.upper() not in ("L", "U"):
        raise ArgumentError(f"{op}: UPLO must be 'L' or 'U', not {value!r}")
    return value.upper()


def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """The eigenvalues (ascending) and eigenvectors of a symmetric matrix, read from its lower triangle."""
    return Eigen(*run("eigh", A, uplo=_uplo("eigh", UPLO)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of a symmetric matrix, ascending."""
    return run("eigvalsh", A, uplo=_uplo("eigvalsh", UPLO))  # type: ignore[no-any-return]


# -- any matrix ---------------------------------------------------------------------------------------------


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """`A = Q @ R`, Q with orthonormal columns and R upper triangular. Mode "r" gives R alone, "complete" a square Q."""
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"qr: mode must be 'reduced', 'complete' or 'r', not {mode!r}")
    q, r = run("qr", A, mode="reduced" if mode == "r" else mode)
    return QR(constant_like(A, ()), r) if mode == "r" else QR(q, r)


def _check_driver(op: str, driver: str | None) -> None:
    if driver is not None:
        raise ArgumentError(f"{op}: driver={driver!r} is for CUDA only", fix="Leave it out.")


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """`A = U @ diag(S) @ Vh` with orthonormal columns of U, rows of Vh, and S descending.

    The gradient by U and Vh is not defined where singular values are equal; that by S always is.
    """
    _check_driver("svd", driver)
    return SVD(*run("svd", A, full_matrices=bool(full_matrices)))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values, descending."""
    _check_driver("svdvals", driver)
    return run("svdvals", A)  # type: ignore[no-any-return]


# -- LU -----------------------------------------------------------------------------------------------------


def _factor(op: str, A: Tensor, pivot: bool) -> Any:
    check_tensor(op, A)
    if not pivot:
        raise OperationError(f"{op}: LU without pivoting is not stable and not offered", fix="Leave pivot=True.")
    return run("lu_factor", A)


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> PackedLUAndInfo:
    """The packed LU factors, the pivots, and the number of the first zero pivot (0: none)."""
    packed, pivots, info = _factor("lu_factor", A, pivot)
    if check_errors and info._read("lu_factor_ex()").any():
        raise LinAlgError(f"lu_factor: a matrix of {A.spec} is singular")
    return PackedLUAndInfo(packed, pivots, info)


def lu_factor(A: Tensor, *, pivot: bool = True) -> PackedLU:
    """The packed LU factors and the pivots, for `lu_solve`."""
    return PackedLU(*_factor("lu_factor", A, pivot)[:2])


def unpack_lu(packed: Tensor, pivots: Tensor) -> LU:
    """P, L and U from the packed form."""
    rows, columns = packed.shape[-2:]
    k = min(rows, columns)
    left = lower(part(packed, -1, 0, k), -1) + identity(packed, rows, k)
    right = upper_triangle(part(packed, -2, 0, k))
    return LU(run("pivot_matrix", pivots, rows=rows, dtype=packed.dtype), left, right)


def lu(A: Tensor, *, pivot: bool = True) -> LU:
    """`A = P @ L @ U`: a permutation, a lower triangle with ones on its diagonal, and an upper triangle."""
    packed, pivots, _ = _factor("lu", A, pivot)
    return unpack_lu(packed, pivots)


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """The X with `A @ X = B` from the factors of A. `adjoint` solves for `A.mT`, `left=False` `X @ A = B`."""
    check_tensors("lu_solve", LU, B)
    if LU.ndim < 2 or B.ndim < 2 or LU.shape[-1] != LU.shape[-2]:
        raise ShapeError(f"lu_solve: needs square factors and a matrix B, not {LU.spec} and {B.spec}")
    if not left:
        return transposed(lu_solve(LU, pivots, transposed(B), adjoint=not adjoint))
    if pivots.dtype.is_floating_point:
        raise ArgumentTypeError(f"lu_solve: the pivots must be integers, not {pivots.spec}")
    turn = run("pivot_matrix", pivots, rows=LU.shape[-1], dtype=LU.dtype)
    LU, B = same_stacks("lu_solve", LU, B)

    def solved(factors: Tensor, right: Tensor, is_upper: bool, unit: bool) -> Tensor:
        return run("solve_triangular", factors, right, upper=is_upper, unitriangular=unit)  # type: ignore[no-any-return]

    if adjoint:
        return matmul(turn, solved(transposed(LU), solved(transposed(LU), B, False, False), True, True))
    B = matmul(transposed(turn), B)
    return solved(LU, solved(LU, B, False, True), True, False)


# -- Householder reflections --------------------------------------------------------------------------------


def reflect(A: Tensor, tau: Tensor, onto: Tensor, *, last_first: bool) -> Tensor:
    """Apply the reflections `1 - tau v vᵀ` whose vectors lie below the diagonal of A to the columns of `onto`."""
    rows, count = A.shape[-2], tau.shape[-1]
    vectors = lower(part(A, -1, 0, count), -1) + identity(A, rows, count)
    for i in reversed(range(count)) if last_first else range(count):
        v = part(vectors, -1, i, i + 1)
        scale = reshaped(part(tau, -1, i, i + 1), *tau.shape[:-1], 1, 1)
        onto = onto - scale * v * matmul(transposed(v), onto)
    return onto


@follows_autocast(FLOAT32_ON_CPU)
def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of the Householder reflections that `geqrf` gives."""
    check_tensors("householder_product", A, tau)
    if A.ndim < 2 or A.shape[-2] < A.shape[-1] or tau.ndim != A.ndim - 1 or tau.shape[-1] > A.shape[-1]:
        raise ShapeError(f"householder_product: vectors {A.spec} and scales {tau.spec} do not fit",
                         fix="A has at least as many rows as columns, tau at most one scale a column.")  # fmt: skip
    start = stretched(identity(A, *A.shape[-2:]), *A.shape)
    if tau.shape[-1] == 0:
        return start + lower(A) * 0
    return reflect(A, tau, start, last_first=True)
