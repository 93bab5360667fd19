"""The singular value decomposition, with its gradient, and the singular values alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.flops import cubic
from wayfare.core.op import Sample, checks_values
from wayfare.core.signature import FLAG, takes
from wayfare.core.spec import Spec
from wayfare.ops.linalg import onnx_rotations
from wayfare.ops.linalg import onnx_rules as rules
from wayfare.ops.linalg._matrix import (
    as_column,
    as_row,
    check_matrix,
    diagonal_matrix,
    fail_at,
    lapack,
    matrix_op,
    numpy_dtype,
    raw_transpose,
    swap,
    weighted_columns,
)


def _svd_infer(x: Spec, *, full_matrices: bool) -> tuple[Spec, Spec, Spec]:
    check_matrix("svd", x)
    *lead, rows, columns = x.shape
    k = min(rows, columns)
    left, right = (rows, columns) if full_matrices else (k, k)
    return Spec((*lead, rows, left), x.dtype), Spec((*lead, k), x.dtype), Spec((*lead, right, columns), x.dtype)


def _decomposed(op: str, x: Any, **options: Any) -> Any:
    try:
        return lapack.svd(x, **options)
    except np.linalg.LinAlgError:
        if x.ndim < 2:
            raise
        raise fail_at(op, x, "has NaN or infinite elements", lambda a: not np.isfinite(a).all()) from None


@checks_values
def _svd(x: Any, *, full_matrices: bool) -> tuple[Any, Any, Any]:
    u, s, vh = _decomposed("svd", x, full_matrices=full_matrices)
    return u, s, vh


def _svd_vjp(m: Any, g: Any, y: Any, x_spec: Spec, *, full_matrices: bool) -> Any:
    (by_u, by_s, by_vh), (u, s, vh) = g, y
    rows, columns = x_spec.shape[-2:]
    k, down, across = s.shape[-1], x_spec.ndim - 2, x_spec.ndim - 1
    if full_matrices and rows > k:  # The vectors beyond the rank are arbitrary: their gradient does not count.
        u, by_u = (m.slice(part, dim=across, start=0, stop=k, step=1) for part in (u, by_u))
    if full_matrices and columns > k:
        vh, by_vh = (m.slice(part, dim=down, start=0, stop=k, step=1) for part in (vh, by_vh))
    squares = m.mul(s, s)
    gaps = m.add(m.sub(as_row(m, squares), as_column(m, squares)), np.eye(k, dtype=numpy_dtype(s)))
    by_v = swap(m, by_vh)
    turn_u, turn_v = m.matmul(swap(m, u), by_u), m.matmul(vh, by_v)
    inner = m.mul(m.div(m.sub(turn_u, swap(m, turn_u)), gaps), as_row(m, s))
    inner = inner + m.mul(m.div(m.sub(turn_v, swap(m, turn_v)), gaps), as_column(m, s))
    inner = m.add(inner, diagonal_matrix(m, by_s))
    out = m.matmul(m.matmul(u, inner), vh)
    if rows > k:
        beyond = m.div(m.sub(by_u, m.matmul(u, turn_u)), as_row(m, s))
        out = m.add(out, m.matmul(beyond, vh))
    if columns > k:
        beyond = m.div(m.sub(by_v, m.matmul(swap(m, vh), turn_v)), as_row(m, s))
        out = m.add(out, m.matmul(u, swap(m, beyond)))
    return out


def _svd_reference(x: Any, full_matrices: bool) -> tuple[Any, Any, Any]:
    """From the eigenvectors of x xᵀ and xᵀ x, with LAPACK's signs."""
    k = min(x.shape[-2:])
    lapack_u, _, lapack_vh = np.linalg.svd(x, full_matrices=full_matrices)
    values, u = np.linalg.eigh(x @ raw_transpose(x))
    _, v = np.linalg.eigh(raw_transpose(x) @ x)
    u, v = u[..., ::-1], v[..., ::-1]
    if not full_matrices:
        u, v = u[..., :k], v[..., :k]
    u = u * np.sign(np.sum(u * lapack_u, axis=-2, keepdims=True))
    v = v * np.sign(np.sum(v * raw_transpose(lapack_vh), axis=-2, keepdims=True))
    return u, np.sqrt(np.maximum(values[..., ::-1][..., :k], 0)), raw_transpose(v)


svd = matrix_op(
    "svd",
    workspace=6,
    signature=takes(1, full_matrices=FLAG),
    onnx=rules.NO_VECTORS,
    work=cubic(12),
    forward=_svd,
    infer=_svd_infer,
    vjp=(_svd_vjp,),
    reference=_svd_reference,
    samples=lambda rng: [
        *(Sample((rng.normal(size=s),), {"full_matrices": False}) for s in ((3, 3), (4, 2), (2, 3), (2, 2, 2))),
        Sample((rng.normal(size=(3, 2)),), {"full_matrices": True}, smooth=False),
        Sample((rng.normal(size=(2, 2)),), {"full_matrices": True}),
    ],
    outputs=3,
    grad_name="LinalgSvdBackward0",
)


def _svdvals_vjp(m: Any, g: Any, _y: Any, x: Any) -> Any:
    u, _, vh = m.svd(x, full_matrices=False)
    return m.matmul(weighted_columns(m, u, g), vh)


# Only the values: several times faster, and the vectors are computed when a gradient asks for them.
svdvals = matrix_op(
    "svdvals",
    signature=takes(1),
    onnx=onnx_rotations.svdvals,
    work=cubic(8 / 3),
    forward=checks_values(lambda x: _decomposed("svdvals", x, compute_uv=False)),
    infer=lambda x: _svd_infer(x, full_matrices=False)[1],
    vjp=(_svdvals_vjp,),
    reference=lambda x: _svd_reference(x, False)[1] if x.size else np.zeros((*x.shape[:-2], min(x.shape[-2:]))),
    samples=lambda rng: [Sample((rng.normal(size=s),)) for s in ((3, 3), (4, 2), (2, 3), (2, 2, 2), (0, 2))],
    grad_name="LinalgSvdBackward0",
)
