"""ONNX rules of singular values and what needs no more: Jacobi's rotations of pairs of columns, in double precision.

In one turn of the Loop every column is rotated against one other, in n - 1 turns against each. After some rounds of
that all columns are orthogonal, and their lengths are the singular values. Vectors are not exported: their signs are
LAPACK's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.spec import float64, int64
from wayfare.ops._onnx_loop import loop
from wayfare.ops.linalg.onnx_rules import transposed

# Convergence is quadratic: random matrices of a hundred columns take eight rounds.
_ROUNDS = 14


def _orthogonal(b: Any, x: Any, top: int) -> Any:
    """The columns rotated until their first `top` rows are orthogonal to each other."""
    columns = x.shape[-1]
    last = x.ndim - 1
    if columns % 2:
        none = b.full((*x.shape[:-1], 1), 0, float64)
        return b.ops.slice(_orthogonal(b, b.ops.cat(x, none, dim=last), top), dim=last, start=0, stop=columns, step=1)
    half = columns // 2
    first, second = np.arange(half), np.arange(columns - 1, half - 1, -1)
    # Round-robin pairs: the first column stays, the others move on by one, so that all pairs meet once.
    moved = np.concatenate([[0, columns - 1], np.arange(1, columns - 1)])
    place = np.argsort(np.concatenate([first, second]))[moved]

    def dot(inner: Any, p: Any, q: Any) -> Any:
        above = inner.ops.slice(p * q, dim=last - 1, start=0, stop=top, step=1)
        return inner.ops.sum(above, dim=(last - 1,), keepdim=True)

    def step(inner: Any, _i: Any, state: Any) -> Any:
        shape = (*state.shape[:-1], half)
        p, q = (inner.node("Gather", state, part, axis=last, shape=shape) for part in (first, second))
        along = dot(inner, p, q)
        straight = along == 0
        cotangent = (dot(inner, q, q) - dot(inner, p, p)) / (2 * inner.ops.where(straight, 1, along))
        tangent = 1 / (abs(cotangent) + inner.ops.sqrt(cotangent * cotangent + 1))
        tangent = inner.ops.where(straight, 0, inner.ops.where(cotangent < 0, -tangent, tangent))
        cosine = 1 / inner.ops.sqrt(tangent * tangent + 1)
        sine = tangent * cosine
        both = inner.ops.cat(cosine * p - sine * q, sine * p + cosine * q, dim=last)
        return (inner.node("Gather", both, place, axis=last, shape=state.shape),)

    return loop(b, b.number(_ROUNDS * (columns - 1), int64), [x], step)[0]


def _lengths(b: Any, x: Any) -> Any:
    return b.ops.sqrt(b.ops.sum(x * x, dim=(x.ndim - 2,), keepdim=False))


def _fixed(b: Any, x: Any) -> tuple[int, int]:
    """The numbers of rows and columns, which must not be dynamic sizes."""
    rows, columns = x.shape[-2:]
    if b.varies(rows) or b.varies(columns):
        raise b.refuse("the size of its matrices varies; leave those axes out of dynamic_axes")
    return rows, columns


def svdvals(b: Any, x: Any) -> Any:
    """The lengths of the rotated columns, largest first."""
    rows, columns = _fixed(b, x)
    wide = b.cast(x, float64)
    wide = transposed(b, wide) if columns > rows else wide
    if columns == 0 or rows == 0:
        return b.full((*x.shape[:-2], 0), 0, x.dtype)
    found = _lengths(b, _orthogonal(b, wide, max(rows, columns)))
    return b.cast(b.ops.sort(found, dim=x.ndim - 2, descending=True)[0], x.dtype)


def eigvalsh(b: Any, x: Any, *, uplo: str) -> Any:
    """The matrix is shifted by a multiple of the identity until no eigenvalue is negative; then its singular values are
    the shifted eigenvalues."""
    size, _ = _fixed(b, x)
    if size == 0:
        return b.full(x.shape[:-1], 0, x.dtype)
    wide = b.cast(x, float64)
    half = b.ops.tril(wide, diagonal=0) if uplo == "L" else b.ops.triu(wide, diagonal=0)
    strict = b.ops.tril(wide, diagonal=-1) if uplo == "L" else b.ops.triu(wide, diagonal=1)
    whole = half + transposed(b, strict)
    rank = x.ndim
    raised = b.ops.amax(b.ops.sum(abs(whole), dim=(rank - 1,), keepdim=False), dim=(rank - 2,), keepdim=True)
    unit = b.constant(np.eye(size))
    lifted = whole + b.ops.reshape(raised, shape=(*raised.shape, 1)) * unit
    found = _lengths(b, _orthogonal(b, lifted, size)) - raised
    return b.cast(b.ops.sort(found, dim=rank - 2, descending=False)[0], x.dtype)


def pinv(b: Any, x: Any, atol: Any, rtol: Any, *, hermitian: bool) -> Any:
    """The rotated columns divided by the squares of their lengths, and rotated back; too short ones are left out."""
    rows, columns = _fixed(b, x)
    if rows == 0 or columns == 0:
        return b.full((*x.shape[:-2], columns, rows), 0, x.dtype)
    if columns > rows:
        return transposed(b, pinv(b, transposed(b, x), atol, rtol, hermitian=hermitian))
    wide = b.cast(x, float64)
    last = x.ndim - 1
    unit = b.ops.expand(b.constant(np.eye(columns)), shape=(*x.shape[:-2], columns, columns))
    made = _orthogonal(b, b.ops.cat(wide, unit, dim=last - 1), rows)
    parts = ((0, rows), (rows, rows + columns))
    above, below = (b.ops.slice(made, dim=last - 1, start=first, stop=end, step=1) for first, end in parts)
    lengths = _lengths(b, above)
    longest = b.ops.amax(lengths, dim=(last - 1,), keepdim=False)
    cutoff = b.node("Max", b.cast(atol, float64), b.cast(rtol, float64) * longest)
    kept = lengths > b.ops.reshape(cutoff, shape=(*cutoff.shape, 1))
    factor = b.ops.where(kept, 1 / (b.ops.where(kept, lengths, 1) * b.ops.where(kept, lengths, 1)), 0)
    scaled = below * b.ops.reshape(factor, shape=(*factor.shape[:-1], 1, columns))
    return b.cast(b.ops.matmul(scaled, transposed(b, above)), x.dtype)
