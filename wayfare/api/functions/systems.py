"""Linear systems as `wf.linalg` has them: inverse, solve, least squares, pseudo-inverse, tensors as matrices."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_tensor, check_tensors
from wayfare.api.functions._linalg import part, reshaped, run, same_stacks, total, transposed
from wayfare.api.functions._public import as_dtype_of
from wayfare.api.functions.matmul import matmul
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.errors import ArgumentError, ShapeError
from wayfare.core.spec import broadcast, float32, float64, normal_dim
from wayfare.core.tensor import Tensor, on_device_of, to_tensor

__all__ = [
    "inv", "inv_ex", "lstsq", "matrix_power", "pinv", "solve", "solve_ex", "solve_triangular",
    "tensorinv", "tensorsolve",
]  # fmt: skip


class InverseAndInfo(NamedTuple):
    """What `inv_ex` gives: `info` is 0 for each matrix that has an inverse."""

    inverse: Tensor
    info: Tensor


class ResultAndInfo(NamedTuple):
    """What `solve_ex` gives: `info` is 0 for each system that has a solution."""

    result: Tensor
    info: Tensor


class LeastSquares(NamedTuple):
    """What `lstsq` gives."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


# -- square systems -----------------------------------------------------------------------------------------


def inv(A: Tensor) -> Tensor:
    """The inverse of a square matrix, or of each of a stack of them."""
    return run("inv", A, strict=True)  # type: ignore[no-any-return]


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InverseAndInfo:
    """The inverse, and instead of an error the number of the first zero pivot where there is none."""
    out = run("inv", A, strict=check_errors)
    return InverseAndInfo(out, run("lu_factor", A.detach())[2])


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The X with `A @ X = B` (with `left=False`: `X @ A = B`). B is a matrix or a vector, or a stack of them."""
    return _solve(A, B, left, strict=True)


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> ResultAndInfo:
    """`solve`, and instead of an error the number of the first zero pivot where A is singular."""
    return ResultAndInfo(_solve(A, B, left, strict=check_errors), run("lu_factor", A.detach())[2])


def _solve(A: Tensor, B: Tensor, left: bool, strict: bool) -> Tensor:
    check_tensors("solve", A, B)
    if A.ndim < 2 or B.ndim < 1:
        raise ShapeError(f"solve: needs a matrix A and a matrix or vector B, not {A.spec} and {B.spec}")
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    if vector:
        if not left:
            raise ShapeError(f"solve: left=False needs a matrix B, not the vector {B.spec}")
        B = reshaped(B, *B.shape, 1)
    if not left:
        A, B = transposed(A), transposed(B)
    A, B = same_stacks("solve", A, B)
    out = run("solve", A, B, strict=strict)
    if vector:
        return reshaped(out, *out.shape[:-1])
    return out if left else transposed(out)


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The X with `A @ X = B` for a triangular A, of which only the triangle is read."""
    check_tensors("solve_triangular", A, B)
    if A.ndim < 2 or B.ndim < 2:
        raise ShapeError(f"solve_triangular: needs matrices, not {A.spec} and {B.spec}")
    if not left:
        A, B, upper = transposed(A), transposed(B), not upper
    A, B = same_stacks("solve_triangular", A, B)
    out = run("solve_triangular", A, B, upper=upper, unitriangular=unitriangular)
    return out if left else transposed(out)


def matrix_power(input: Tensor, n: int) -> Tensor:
    """A square matrix multiplied n times by itself; a negative n multiplies its inverse."""
    check_tensor("matrix_power", input)
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise ShapeError(f"matrix_power: the matrix must be square, not {input.spec}")
    if n < 0:
        return matrix_power(inv(input), -n)
    if n == 0:
        # A product with nothing, so that the result still belongs to the graph of the input.
        return input * 0 + on_device_of(input, np.eye(input.shape[-1], dtype=input.dtype.numpy))
    out: Tensor | None = None
    square = input
    while n:
        if n % 2:
            out = square if out is None else matmul(out, square)
        n //= 2
        if n:
            square = matmul(square, square)
    assert out is not None
    return out * 1 if out is input else out


# -- pseudo-inverse and least squares -----------------------------------------------------------------------


def cutoffs(op: str, A: Tensor, atol: Any, rtol: Any) -> tuple[Tensor, Tensor]:
    """The absolute and relative tolerance below which a singular value counts as zero, one for each matrix."""
    if rtol is None:
        given = atol is not None and (isinstance(atol, Tensor) or atol > 0)
        by_size = max(A.shape[-2:]) * float(np.finfo(A.dtype.numpy).eps)
        if isinstance(atol, Tensor):
            rtol = np.where(atol.detach()._read(f"{op}()") > 0, 0.0, by_size)
        else:
            rtol = 0.0 if given else by_size
    pair = (to_tensor(0.0 if v is None else v, op=op) for v in (atol, rtol))
    atol, rtol = (as_dtype_of(t.detach(), float64) for t in pair)
    lead = broadcast(op, tuple(A.shape[:-2]), tuple(atol.shape), tuple(rtol.shape))
    return atol.expand(lead), rtol.expand(lead)


@follows_autocast(FLOAT32_ON_CPU)
def pinv(
    A: Tensor, rcond: float | Tensor | None = None, hermitian: bool = False, *, atol: float | Tensor | None = None,
    rtol: float | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The pseudo-inverse. Singular values up to max(atol, rtol times the largest) count as zero."""
    check_tensor("pinv", A)
    if A.ndim < 2 or A.dtype not in (float32, float64):
        run("svdvals", A)
    absolute, relative = cutoffs("pinv", A, atol, rcond if rtol is None else rtol)
    A = A.expand(*absolute.shape, *A.shape[-2:])
    return run("pinv", A, absolute, relative, hermitian=hermitian)  # type: ignore[no-any-return]


_DRIVERS = ("gelsy", "gels", "gelsd", "gelss")


@follows_autocast(FLOAT32_ON_CPU)
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The X with the least sum of squares of `A @ X - B`, with residuals, rank and singular values.

    Every `driver` computes by singular values here; it decides, as in PyTorch, what is returned beside the solution.
    """
    check_tensors("lstsq", A, B)
    driver = driver or "gelsy"
    if driver not in _DRIVERS:
        raise ArgumentError(f"lstsq: driver {driver!r} is not one of {', '.join(_DRIVERS)}")
    if A.ndim < 2:
        raise ShapeError(f"lstsq: needs a matrix A, not {A.spec}")
    vector = B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]
    if vector:
        B = reshaped(B, *B.shape, 1)
    rows, columns = A.shape[-2:]
    if B.ndim < 2 or B.shape[-2] != rows:
        raise ShapeError(f"lstsq: the sides have different numbers of rows, A {A.spec} and B {B.spec}")
    if A.dtype not in (float32, float64):
        run("svdvals", A)
    A, B = same_stacks("lstsq", A, B)
    relative = max(rows, columns) * float(np.finfo(A.dtype.numpy).eps) if rcond is None else rcond
    solution = matmul(pinv(A, rtol=0.0 if driver == "gels" else relative), B)
    values = run("svdvals", A.detach())
    numbers = values._read("lstsq()")
    largest = numbers.max(-1, keepdims=True) if numbers.shape[-1] else numbers
    rank = (numbers > relative * largest).sum(-1)
    if rows > columns and driver != "gelsy" and (driver == "gels" or bool((rank == columns).all())):
        difference = matmul(A, solution) - B
        residuals = total(difference * difference, -2)
    else:  # None of them, but still part of the graph, as in PyTorch.
        residuals = part(reshaped(solution, solution.shape.numel()), 0, 0, 0)
    ranks = on_device_of(A, np.zeros(0, np.int64) if driver == "gels" else np.asarray(rank, np.int64))
    if driver not in ("gelsd", "gelss"):
        values = on_device_of(A, np.zeros(0, A.dtype.numpy))
    if vector:
        solution = reshaped(solution, *solution.shape[:-1])
    return LeastSquares(solution, residuals, ranks, values)


# -- tensors as matrices ------------------------------------------------------------------------------------


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of `tensordot(A, ·, ind)`: A's first `ind` dimensions together are as large as the others."""
    check_tensor("tensorinv", A)
    if ind <= 0:
        raise ArgumentError(f"tensorinv: ind must be positive, not {ind}")
    rows, columns = A.shape[:ind], A.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise ShapeError(f"tensorinv: the first {ind} dimensions of {A.spec} hold {math.prod(rows)} elements and the "
                         f"others {math.prod(columns)}, which must be equal")  # fmt: skip
    return reshaped(inv(reshaped(A, math.prod(rows), math.prod(columns))), *columns, *rows)


def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """The X with `tensordot(A, X, X.ndim) = B`. `dims` of A are moved to its end first."""
    check_tensors("tensorsolve", A, B)
    if dims is not None:
        moved = [normal_dim("tensorsolve", d, A.ndim) for d in (dims if isinstance(dims, (tuple, list)) else [dims])]
        A = A.permute([d for d in range(A.ndim) if d not in moved] + moved)
    unknown = A.shape[B.ndim :]
    if math.prod(unknown) != B.shape.numel() or A.shape.numel() != B.shape.numel() ** 2:
        raise ShapeError(f"tensorsolve: A {A.spec} is not a square system for B {B.spec}")
    size = B.shape.numel()
    return reshaped(solve(reshaped(A, size, size), reshaped(B, size)), *unknown)
