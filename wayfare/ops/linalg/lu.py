"""The LU decomposition as LAPACK packs it, with its gradient, and the permutation that its pivots stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.flops import cubic, nothing
from wayfare.core.op import Sample
from wayfare.core.signature import COUNT, DTYPE, takes
from wayfare.core.spec import DType, Spec, float64, int32
from wayfare.ops.linalg import onnx_rules as rules
from wayfare.ops.linalg._matrix import check_matrix, matrices, matrix_op, numpy_dtype, scipy_call, swap


def _lu_infer(x: Spec) -> tuple[Spec, Spec, Spec]:
    check_matrix("lu_factor", x)
    lead, k = x.shape[:-2], min(x.shape[-2:])
    return x, Spec((*lead, k), int32), Spec(lead, int32)


def _lu(x: Any) -> tuple[Any, Any, Any]:
    """LAPACK's packed factors, its pivots counted from 1, and which pivot was zero first (0: none)."""
    if x.ndim < 2 or x.dtype.char not in "fd":
        raise TypeError("a floating-point matrix is needed")
    factor = scipy_call("scipy.linalg.lapack", "sgetrf" if x.dtype.char == "f" else "dgetrf")
    out = np.empty(x.shape, x.dtype)
    pivots = np.empty((*x.shape[:-2], min(x.shape[-2:])), np.int32)
    info = np.zeros(x.shape[:-2], np.int32)
    if out.size:
        for index, matrix in matrices(x):
            out[index], found, info[index] = factor(matrix)
            pivots[index] = found + 1
    return out, pivots, info


def _pivot_matrix(pivots: Any, *, rows: int, dtype: DType) -> Any:
    """The matrix P of P L U, from the exchanges of rows that the pivots (counted from 1) record."""
    lead = pivots.shape[:-1]
    out = np.zeros((*lead, rows, rows), dtype.numpy)
    for index in np.ndindex(lead):
        order = list(range(rows))
        for i, pivot in enumerate(pivots[index]):
            order[i], order[pivot - 1] = order[pivot - 1], order[i]
        out[index][order, range(rows)] = 1
    return out


def _pivot_matrix_reference(pivots: Any, rows: int, dtype: DType) -> Any:
    out = np.empty((*pivots.shape[:-1], rows, rows))
    for index in np.ndindex(pivots.shape[:-1]):
        turn = np.eye(rows)
        for i, pivot in reversed(list(enumerate(pivots[index]))):
            turn[[i, pivot - 1]] = turn[[pivot - 1, i]]
        out[index] = turn
    return out


def _pivot_matrix_workspace(specs: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """All matrices, which may be of a dtype twice as wide as the pivots; one matrix is made even of an empty stack."""
    return 2 * max(math.prod(specs[0].shape[:-1]), 1) * int(attrs["rows"]) ** 2 + specs[0].size


pivot_matrix = matrix_op(
    "pivot_matrix",
    workspace=_pivot_matrix_workspace,
    signature=takes(1, rows=COUNT, dtype=DTYPE),
    onnx=rules.pivot_matrix,
    work=nothing,
    forward=_pivot_matrix,
    infer=lambda pivots, *, rows, dtype: Spec((*pivots.shape[:-1], rows, rows), dtype),
    vjp=None,
    reference=_pivot_matrix_reference,
    samples=lambda rng: [
        Sample((np.array(pivots, np.int32),), {"rows": 3, "dtype": float64})
        for pivots in ([3, 3, 3], [[2, 3], [1, 2]], [1])
    ],
    kinds="iu",
)


def _lu_vjp(m: Any, g: Any, y: Any, x_spec: Spec) -> Any:
    by_lu, factors, pivots = g[0], y[0], y[1]
    rows, columns = x_spec.shape[-2:]
    k, down, across = min(rows, columns), x_spec.ndim - 2, x_spec.ndim - 1
    first_rows = dict(dim=down, start=0, stop=k, step=1)
    first_columns = dict(dim=across, start=0, stop=k, step=1)

    def lower(part: Any) -> Any:
        return m.tril(part, diagonal=-1)

    def upper(part: Any) -> Any:
        return m.triu(part, diagonal=0)

    def solve_l(right: Any) -> Any:  # L⁻ᵀ right
        return m.solve_triangular(swap(m, square), right, upper=True, unitriangular=True)

    def solve_u(left: Any) -> Any:  # left U⁻ᵀ
        return swap(m, m.solve_triangular(square, swap(m, left), upper=True, unitriangular=False))

    square = m.slice(m.slice(factors, **first_rows), **first_columns)
    by_square = m.slice(m.slice(by_lu, **first_rows), **first_columns)
    by_l, by_u = lower(by_square), upper(by_square)
    beyond: Any = None
    if columns > rows:  # U = [u v], v = L⁻¹ b
        rest = dict(dim=across, start=k, stop=columns, step=1)
        beyond = solve_l(m.slice(by_lu, **rest))
        by_l = m.sub(by_l, lower(m.matmul(beyond, swap(m, m.slice(factors, **rest)))))
    elif rows > columns:  # L = [l; w], w = b U⁻¹
        rest = dict(dim=down, start=k, stop=rows, step=1)
        beyond = solve_u(m.slice(by_lu, **rest))
        by_u = m.sub(by_u, upper(m.matmul(swap(m, m.slice(factors, **rest)), beyond)))
    by_l = lower(m.matmul(swap(m, _with_unit_diagonal(m, square)), by_l))
    by_u = upper(m.matmul(by_u, swap(m, upper(square))))
    out = solve_u(solve_l(m.add(by_l, by_u)))
    if beyond is not None:
        out = m.cat(out, beyond, dim=across if columns > rows else down)
    return m.matmul(m.pivot_matrix(pivots, rows=rows, dtype=x_spec.dtype), out)


def _with_unit_diagonal(m: Any, square: Any) -> Any:
    return m.add(m.tril(square, diagonal=-1), np.eye(square.shape[-1], dtype=numpy_dtype(square)))


def _lu_reference(x: Any) -> tuple[Any, Any, Any]:
    """Gaussian elimination, row by row."""
    out, k = np.array(x), min(x.shape[-2:])
    pivots = np.zeros((*x.shape[:-2], k), np.int32)
    for index, a in matrices(out):
        for i in range(k):
            best = i + int(np.argmax(np.abs(a[i:, i])))
            pivots[index][i] = best + 1
            a[[i, best]] = a[[best, i]]
            a[i + 1 :, i] /= a[i, i]
            a[i + 1 :, i + 1 :] -= np.outer(a[i + 1 :, i], a[i, i + 1 :])
    return out, pivots, np.zeros(x.shape[:-2])


lu_factor = matrix_op(
    "lu_factor",
    workspace=1,
    signature=takes(1),
    onnx=rules.lu_factor,
    work=cubic(2 / 3),
    forward=_lu,
    infer=_lu_infer,
    vjp=(_lu_vjp,),
    reference=_lu_reference,
    samples=lambda rng: [Sample((rng.normal(size=s),)) for s in ((3, 3), (2, 4), (4, 2), (2, 2, 2), (0, 0))],
    outputs=3,
    differentiable_outputs=(0,),
    grad_name="LinalgLuFactorExBackward0",
)
