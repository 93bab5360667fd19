"""ONNX rules of linear algebra: elimination and reflection column by column, in a Loop and in double precision.

A matrix that has no inverse or no Cholesky factor gives NaN or infinity: a model raises no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.op import NotExportable
from wayfare.core.spec import float64, int32, int64
from wayfare.ops._onnx_loop import loop

NO_VECTORS = NotExportable("the signs of its vectors are LAPACK's own choice, which a file cannot repeat; use svdvals, "
                           "eigvalsh or pinv, or compute it outside and pass it in")  # fmt: skip
NO_GEQRF = NotExportable("the packed form is LAPACK's own; use wf.linalg.qr")
NO_COFACTORS = NotExportable("it is the gradient of a determinant, for singular matrices too; use wf.linalg.inv")


# -- parts of matrices ------------------------------------------------------------------------------------------------


def _column(b: Any, x: Any, i: Any) -> Any:
    """Column number i of each matrix, as […, rows, 1]."""
    return b.ops.reshape(b.node("Gather", x, i, axis=x.ndim - 1, shape=x.shape[:-1]), shape=(*x.shape[:-1], 1))


def _row(b: Any, x: Any, i: Any) -> Any:
    """Row number i of each matrix, as […, 1, columns]."""
    return _lying(b, b.node("Gather", x, i, axis=x.ndim - 2, shape=(*x.shape[:-2], x.shape[-1])))


def _lying(b: Any, v: Any) -> Any:
    return b.ops.reshape(v, shape=(*v.shape[:-1], 1, v.shape[-1]))


def transposed(b: Any, x: Any) -> Any:
    """Each matrix of a stack transposed."""
    return b.ops.permute(x, dims=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _numbers(b: Any, n: int) -> tuple[Any, Any]:
    """0, 1, 2, … as a column and as a row."""
    return b.ops.reshape(b.counting(n), shape=(n, 1)), b.ops.reshape(b.counting(n), shape=(1, n))


def _unit(b: Any, like: Any, n: int) -> Any:
    """The unit matrix, for each matrix of a stack."""
    down, across = _numbers(b, n)
    return b.ops.expand(b.cast(down == across, float64), shape=(*like.shape[:-2], n, n))


def _doubled(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule in double precision, with floating-point results cast back."""

    def wide(b: Any, *given: Any, **attrs: Any) -> Any:
        dtype = given[0].dtype
        made = rule(b, *[b.cast(x, float64) for x in given], **attrs)
        back = [b.cast(v, dtype) if v.dtype is float64 else v for v in (made if isinstance(made, tuple) else (made,))]
        return tuple(back) if isinstance(made, tuple) else back[0]

    wide.__doc__ = rule.__doc__
    return wide


# -- elimination ------------------------------------------------------------------------------------------------------


def _exchanged(b: Any, x: Any, i: Any, down: Any) -> tuple[Any, Any]:
    """The matrix with the pivot row (largest element of column i from row i on) swapped to row i; and the number of
    that row, as […, 1, 1]."""
    size = b.ops.where(down >= i, abs(_column(b, x, i)), -1)
    rank = x.ndim
    place = b.node("ArgMax", size, axis=rank - 2, keepdims=1, shape=(*x.shape[:-2], 1, 1))
    index = b.ops.expand(place, shape=(*x.shape[:-2], 1, x.shape[-1]))
    best = b.node("GatherElements", x, index, axis=rank - 2, shape=index.shape)
    moved = b.ops.where(down == place, _row(b, x, i), x)
    return b.ops.where(down == i, best, moved), place


def _eliminated(b: Any, x: Any, n: int) -> Any:
    """Gauss-Jordan elimination: row operations that turn the first n columns into the identity."""
    down = _numbers(b, n)[0]

    def step(inner: Any, i: Any, state: Any) -> Any:
        rows = inner.own(down)
        state, _ = _exchanged(inner, state, i, rows)
        row = _row(inner, state, i)
        row = row / _column(inner, row, i)
        cleared = state - _column(inner, state, i) * row
        return (inner.ops.where(rows == i, row, cleared),)

    return loop(b, b.number(n, int64), [x], step)[0]


@_doubled
def solve(b: Any, a: Any, right: Any, *, strict: bool) -> Any:
    """Gauss-Jordan elimination with partial pivoting."""
    n, last = a.shape[-1], a.ndim - 1
    whole = b.ops.cat(a, right, dim=last)
    return b.ops.slice(_eliminated(b, whole, n), dim=last, start=n, stop=whole.shape[-1], step=1)


@_doubled
def inv(b: Any, x: Any, *, strict: bool) -> Any:
    """The solution for the identity matrix."""
    return b.ops.solve(x, _unit(b, x, x.shape[-1]), strict=strict)


@_doubled
def slogdet(b: Any, x: Any) -> tuple[Any, Any]:
    """The product of the pivots, as sign and logarithm; every swap of two rows changes the sign."""
    n, lead = x.shape[-1], x.shape[:-2]
    down = _numbers(b, n)[0]

    def step(inner: Any, i: Any, state: Any, sign: Any, log: Any) -> Any:
        rows = inner.own(down)
        state, place = _exchanged(inner, state, i, rows)
        row = _row(inner, state, i)
        corner = _column(inner, row, i)
        pivot = inner.ops.reshape(corner, shape=lead)
        turns = inner.ops.reshape(inner.ops.where(place == i, inner.number(1, float64), -1), shape=lead)
        row = row / inner.ops.where(corner == 0, 1, corner)
        cleared = inner.ops.where(rows > i, state - _column(inner, state, i) * row, state)
        return cleared, sign * turns * inner.ops.sign(pivot), log + inner.ops.log(abs(pivot))

    start = [x, b.full(lead, 1, float64), b.full(lead, 0, float64)]
    return tuple(loop(b, b.number(n, int64), start, step)[1:])


@_doubled
def lu_factor(b: Any, x: Any) -> tuple[Any, Any, Any]:
    """LU with the factors of elimination below the diagonal; also the pivots, and which pivot is the first zero."""
    lead, (rows, columns) = x.shape[:-2], x.shape[-2:]
    count = min(rows, columns)
    down, numbers = _numbers(b, rows)[0], b.counting(count)
    across = _numbers(b, columns)[1]

    def step(inner: Any, i: Any, state: Any, pivots: Any, info: Any) -> Any:
        under = inner.own(down) > i
        state, place = _exchanged(inner, state, i, inner.own(down))
        row = _row(inner, state, i)
        corner = _column(inner, row, i)
        often = _column(inner, state, i) / inner.ops.where(corner == 0, 1, corner)
        right = inner.own(across) > i
        state = inner.ops.where(under, inner.ops.where(right, state - often * row, state), state)
        state = inner.ops.where(inner.node("And", under, inner.own(across) == i), often, state)
        found = inner.ops.reshape(place, shape=(*lead, 1)) + 1
        first = inner.node("And", info == 0, inner.ops.reshape(corner, shape=lead) == 0)
        return state, inner.ops.where(inner.own(numbers) == i, found, pivots), inner.ops.where(first, i + 1, info)

    start = [x, b.full((*lead, count), 0, int64), b.full(lead, 0, int64)]
    state, pivots, info = loop(b, b.number(count, int64), start, step)
    return state, b.cast(pivots, int32), b.cast(info, int32)


def pivot_matrix(b: Any, pivots: Any, *, rows: int, dtype: Any) -> Any:
    """The permutation matrix of the row swaps."""
    lead, count = pivots.shape[:-1], pivots.shape[-1]
    numbers = b.counting(rows)
    places = b.ops.sub(b.cast(pivots, int64), 1)

    def step(inner: Any, i: Any, order: Any) -> Any:
        own = inner.own(numbers)
        other = inner.node("Gather", inner.own(places), i, axis=len(lead), shape=lead)
        other = inner.ops.reshape(other, shape=(*lead, 1))
        here = inner.ops.reshape(inner.node("Gather", order, i, axis=len(lead), shape=lead), shape=(*lead, 1))
        there = inner.node("GatherElements", order, other, axis=len(lead), shape=(*lead, 1))
        moved = inner.ops.where(own == other, here, order)
        return (inner.ops.where(own == i, there, moved),)

    start = b.ops.expand(numbers, shape=(*lead, rows))
    order = loop(b, b.number(count, int64), [start], step)[0]
    return b.cast(_lying(b, order) == b.ops.reshape(numbers, shape=(rows, 1)), dtype)


@_doubled
def solve_triangular(b: Any, a: Any, right: Any, *, upper: bool, unitriangular: bool) -> Any:
    """Substitution, row by row."""
    n = a.shape[-1]
    a = b.ops.triu(a, diagonal=0) if upper else b.ops.tril(a, diagonal=0)
    down = _numbers(b, n)[0]

    def step(inner: Any, k: Any, known: Any) -> Any:
        i = inner.number(n - 1, int64) - k if upper else k
        row = _row(inner, inner.own(a), i)
        value = _row(inner, inner.own(right), i) - inner.ops.matmul(row, known)
        if not unitriangular:
            value = value / _column(inner, row, i)
        return (inner.ops.where(inner.own(down) == i, value, known),)

    return loop(b, b.number(n, int64), [b.full(right.shape, 0, float64)], step)[0]


# -- symmetric matrices -----------------------------------------------------------------------------------------------


def _cholesky(b: Any, x: Any) -> tuple[Any, Any]:
    """The Cholesky factor, and the number of the first column where it fails (0 if none)."""
    n = x.shape[-1]
    down, across = _numbers(b, n)

    def step(inner: Any, i: Any, known: Any, info: Any) -> Any:
        rest = _column(inner, inner.own(x), i) - inner.ops.matmul(known, transposed(inner, _row(inner, known, i)))
        square = _row(inner, rest, i)
        column = inner.ops.where(inner.own(down) >= i, rest / inner.ops.sqrt(square), 0)
        fails = inner.ops.reshape(inner.node("Not", square > 0), shape=info.shape)
        info = inner.ops.where(inner.node("And", info == 0, fails), i + 1, info)
        return inner.ops.where(inner.own(across) == i, column, known), info

    start = [b.full(x.shape, 0, float64), b.full(x.shape[:-2], 0, int64)]
    known, info = loop(b, b.number(n, int64), start, step)
    return known, info


@_doubled
def cholesky(b: Any, x: Any, *, strict: bool) -> Any:
    """The Cholesky factor; all NaN for a matrix that has none."""
    known, info = _cholesky(b, x)
    return b.ops.where(b.ops.reshape(info, shape=(*info.shape, 1, 1)) == 0, known, math.nan)


@_doubled
def cholesky_info(b: Any, x: Any) -> Any:
    """The order of the first minor that is not positive."""
    return b.cast(_cholesky(b, x)[1], int32)


# -- reflections ------------------------------------------------------------------------------------------------------


@_doubled
def qr(b: Any, x: Any, *, mode: str) -> tuple[Any, Any]:
    """Householder QR: each column is reflected onto an axis, with LAPACK's signs."""
    rows, columns = x.shape[-2:]
    width = rows if mode == "complete" else min(rows, columns)
    down = _numbers(b, rows)[0]
    rank = x.ndim

    def step(inner: Any, i: Any, q: Any, r: Any) -> Any:
        own = inner.own(down)
        column = inner.ops.where(own >= i, _column(inner, r, i), 0)
        tail = inner.ops.sum(inner.ops.where(own > i, column * column, 0), dim=(rank - 2,), keepdim=True)
        corner = _row(inner, column, i)
        length = inner.ops.sqrt(corner * corner + tail)
        v = inner.ops.where(own == i, corner + inner.ops.where(corner < 0, -length, length), column)
        # A column that is on its axis already stays as it is.
        square = inner.ops.sum(v * v, dim=(rank - 2,), keepdim=True)
        factor = inner.ops.where(tail == 0, 0, 2 / inner.ops.where(tail == 0, 1, square))
        across = transposed(inner, v)
        r = r - factor * inner.ops.matmul(v, inner.ops.matmul(across, r))
        return q - factor * inner.ops.matmul(inner.ops.matmul(q, v), across), r

    q, r = loop(b, b.number(min(rows, columns), int64), [_unit(b, x, rows), x], step)
    q = b.ops.slice(q, dim=rank - 1, start=0, stop=width, step=1)
    return q, b.ops.triu(b.ops.slice(r, dim=rank - 2, start=0, stop=width, step=1), diagonal=0)


# -- the exponential --------------------------------------------------------------------------------------------------


@_doubled
def matrix_exp(b: Any, x: Any) -> Any:
    """Scaling and squaring: the Taylor series of the matrix divided by 2^s, squared s times."""
    flat = b.ops.reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))
    sums = b.ops.sum(abs(flat), dim=(1,), keepdim=False)
    least = b.constant(np.array([0.5]))
    size = b.ops.amax(b.node("Concat", least, sums, axis=0, shape=(flat.shape[0] + 1,)), dim=(0,), keepdim=False)
    # For larger norms the result is infinite anyway.
    size = b.node("Min", size, b.number(1e9, float64))
    times = b.ops.ceil(b.ops.log(size * 2) * (1 / math.log(2)))
    small = x * b.node("Pow", b.number(0.5, float64), times)
    one = _unit(b, x, x.shape[-1])
    total = one
    for k in range(13, 0, -1):
        total = one + b.ops.matmul(small, total) * (1 / k)
    return loop(b, b.cast(times, int64), [total], lambda inner, _i, state: (inner.ops.matmul(state, state),))[0]
