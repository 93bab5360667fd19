"""Decompositions of symmetric matrices (Cholesky, eigenvectors) and QR of any matrix.

A symmetric matrix is read from one triangle, as LAPACK does, and its gradient is the symmetric one, as in PyTorch:
right for every change that keeps the matrix symmetric.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.errors import GraphError
from wayfare.core.flops import cubic
from wayfare.core.op import Sample, checks_values
from wayfare.core.signature import FLAG, TEXT, takes
from wayfare.core.spec import Spec, int32, spec_of
from wayfare.ops.linalg import onnx_rotations
from wayfare.ops.linalg import onnx_rules as rules
from wayfare.ops.linalg._matrix import (
    as_column,
    as_row,
    check_matrix,
    check_square,
    diagonal_matrix,
    fail_at,
    lapack,
    matrices,
    matrix_op,
    numpy_dtype,
    raises,
    raw_transpose,
    scipy_call,
    square,
    swap,
    weighted_columns,
)


def _symmetric_samples(rng: Any, **attrs: Any) -> list[Sample]:
    """Only 1×1 samples are smooth: finite differences of one element make a larger matrix unsymmetric."""
    samples = [Sample((rng.uniform(0.5, 2.0, size=shape),), attrs) for shape in ((1, 1), (2, 1, 1))]
    for shape in ((3, 3), (2, 2, 2), (0, 0)):
        x = rng.normal(size=shape)
        samples.append(Sample((x @ raw_transpose(x) + np.eye(shape[-1]),), attrs, smooth=False))
    return samples


# -- Cholesky -----------------------------------------------------------------------------------------------


@checks_values
def _cholesky(x: Any, *, strict: bool) -> Any:
    try:
        return lapack.cholesky(x)
    except np.linalg.LinAlgError:
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise
        if strict:
            raise fail_at("cholesky", x, "is not positive definite", raises(np.linalg.cholesky),
                          "Add a small multiple of the identity if it should be.") from None  # fmt: skip
    out = np.full(x.shape, np.nan, x.dtype)
    for index, matrix in matrices(x):
        if not raises(np.linalg.cholesky)(matrix):
            out[index] = lapack.cholesky(matrix)
    return out


def _cholesky_vjp(m: Any, g: Any, y: Any, _x: Any, *, strict: bool) -> Any:
    inner = m.tril(m.matmul(swap(m, y), g), diagonal=0)
    # Halving the sum with the transpose keeps the diagonal once and shares the rest evenly.
    inner = 0.5 * (m.tril(inner, diagonal=-1) + swap(m, inner))
    back = m.solve_triangular(swap(m, y), inner, upper=True, unitriangular=False)
    return swap(m, m.solve_triangular(swap(m, y), swap(m, back), upper=True, unitriangular=False))


cholesky = matrix_op(
    "cholesky",
    workspace=3,
    signature=takes(1, strict=FLAG),
    onnx=rules.cholesky,
    work=cubic(1 / 3),
    forward=_cholesky,
    infer=square("cholesky"),
    vjp=(_cholesky_vjp,),
    # Element by element, from the definition.
    reference=lambda x, strict: _cholesky_by_rows(x),
    samples=lambda rng: _symmetric_samples(rng, strict=True),
    grad_name="LinalgCholeskyExBackward0",
)


def _cholesky_by_rows(x: Any) -> Any:
    out = np.zeros(x.shape)
    for index, matrix in matrices(x):
        for i in range(matrix.shape[0]):
            for j in range(i + 1):
                rest = matrix[i, j] - sum(out[index][i, k] * out[index][j, k] for k in range(j))
                out[index][i, j] = np.sqrt(rest) if i == j else rest / out[index][j, j]
    return out


# -- eigenvalues and eigenvectors of a symmetric matrix -----------------------------------------------------


def _eigh_infer(x: Spec, *, uplo: str) -> tuple[Spec, Spec]:
    check_square("eigh", x)
    return Spec(x.shape[:-1], x.dtype), x


@checks_values
def _eigh(x: Any, *, uplo: Any) -> tuple[Any, Any]:
    try:
        values, vectors = lapack.eigh(x, UPLO=uplo)
    except np.linalg.LinAlgError:
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise
        raise fail_at("eigh", x, "has NaN or infinite elements", lambda a: not np.isfinite(a).all()) from None
    return values, vectors


def _eigh_vjp(m: Any, g: Any, y: Any, _x: Any, *, uplo: str) -> Any:
    by_values, by_vectors = g
    values, vectors = y
    turn = m.matmul(swap(m, vectors), by_vectors)
    turn = 0.5 * (turn - swap(m, turn))
    gaps = m.sub(as_row(m, values), as_column(m, values))
    inner = m.div(turn, m.add(gaps, np.eye(values.shape[-1], dtype=numpy_dtype(values))))
    inner = m.add(inner, diagonal_matrix(m, by_values))
    return m.matmul(m.matmul(vectors, inner), swap(m, vectors))


def _eigh_reference(x: Any, uplo: str) -> tuple[Any, Any]:
    """Values and vectors from the singular values: for a positive definite matrix they are the same."""
    _, s, vh = np.linalg.svd(x)
    vectors = raw_transpose(vh)[..., ::-1]
    signs = np.sign(np.sum(np.linalg.eigh(x)[1] * vectors, axis=-2, keepdims=True))
    return s[..., ::-1], vectors * signs


eigh = matrix_op(
    "eigh",
    signature=takes(1, uplo=TEXT),
    onnx=rules.NO_VECTORS,
    work=cubic(9),
    forward=_eigh,
    infer=_eigh_infer,
    vjp=(_eigh_vjp,),
    reference=_eigh_reference,
    samples=lambda rng: _symmetric_samples(rng, uplo="L") + _symmetric_samples(rng, uplo="U"),
    outputs=2,
    grad_name="LinalgEighBackward0",
)


def _eigvalsh_vjp(m: Any, g: Any, _y: Any, x: Any, *, uplo: str) -> Any:
    _, vectors = m.eigh(x, uplo=uplo)
    return m.matmul(weighted_columns(m, vectors, g), swap(m, vectors))


# Only the values: several times faster, and the vectors are computed when a gradient asks for them.
eigvalsh = matrix_op(
    "eigvalsh",
    signature=takes(1, uplo=TEXT),
    onnx=onnx_rotations.eigvalsh,
    work=cubic(4 / 3),
    forward=lambda x, *, uplo: lapack.eigvalsh(x, UPLO=uplo),
    infer=lambda x, *, uplo: _eigh_infer(x, uplo=uplo)[0],
    vjp=(_eigvalsh_vjp,),
    reference=lambda x, uplo: _eigh_reference(x, uplo)[0],
    samples=lambda rng: _symmetric_samples(rng, uplo="L"),
    grad_name="LinalgEighBackward0",
)


# -- QR -----------------------------------------------------------------------------------------------------


def _qr_infer(x: Spec, *, mode: str) -> tuple[Spec, Spec]:
    check_matrix("qr", x)
    *lead, rows, columns = x.shape
    width = rows if mode == "complete" else min(rows, columns)
    return Spec((*lead, rows, width), x.dtype), Spec((*lead, width, columns), x.dtype)


def _qr(x: Any, *, mode: Any) -> tuple[Any, Any]:
    if x.size == 0:  # Without columns a complete Q is the identity, which NumPy does not fill in.
        q, r = (np.zeros(s.shape, x.dtype) for s in _qr_infer(spec_of(x), mode=mode))
        q[...] = np.eye(q.shape[-2], q.shape[-1], dtype=x.dtype)
        return q, r
    q, r = lapack.qr(x, mode=mode)
    return q, r


def _qr_vjp(m: Any, g: Any, y: Any, x: Any, *, mode: str) -> Any:
    (by_q, by_r), (q, r) = g, y
    rows, columns = x.shape[-2:]
    if mode == "complete" and rows > columns:
        raise GraphError("qr: mode='complete' has no gradient for a matrix with more rows than columns",
                         fix="Use mode='reduced'.")  # fmt: skip
    if rows >= columns:
        return _qr_square_vjp(m, by_q, by_r, q, r)
    # The first columns decide Q; the others only follow: x = [a b], r = [u v], v = qᵀ b.
    last = x.ndim - 1
    a_part = dict(dim=last, start=0, stop=rows, step=1)
    b_part = dict(dim=last, start=rows, stop=columns, step=1)
    by_v = m.slice(by_r, **b_part)
    by_q = m.add(by_q, m.matmul(m.slice(x, **b_part), swap(m, by_v)))
    by_a = _qr_square_vjp(m, by_q, m.slice(by_r, **a_part), q, m.slice(r, **a_part))
    return m.cat(by_a, m.matmul(q, by_v), dim=last)


def _qr_square_vjp(m: Any, by_q: Any, by_r: Any, q: Any, r: Any) -> Any:
    inner = m.sub(m.matmul(r, swap(m, by_r)), m.matmul(swap(m, by_q), q))
    inner = m.add(m.tril(inner, diagonal=0), swap(m, m.tril(inner, diagonal=-1)))
    outer = m.add(by_q, m.matmul(q, inner))
    return swap(m, m.solve_triangular(r, swap(m, outer), upper=True, unitriangular=False))


def _qr_reference(x: Any, mode: str) -> tuple[Any, Any]:
    """By Cholesky of xᵀx for the shape of R, with LAPACK's signs."""
    k = min(x.shape[-2:])
    first = x[..., :k]
    r = raw_transpose(np.linalg.cholesky(raw_transpose(first) @ first))
    q = first @ np.linalg.inv(r)
    signs = np.sign(np.sum(q * np.linalg.qr(x, mode="reduced")[0], axis=-2))
    q = q * signs[..., None, :]
    return q, raw_transpose(q) @ x


qr = matrix_op(
    "qr",
    workspace=4,
    signature=takes(1, mode=TEXT),
    onnx=rules.qr,
    work=cubic(8 / 3),
    forward=_qr,
    infer=_qr_infer,
    vjp=(_qr_vjp,),
    reference=_qr_reference,
    samples=lambda rng: [
        *(Sample((rng.normal(size=s),), {"mode": "reduced"}) for s in ((3, 3), (4, 2), (2, 4), (2, 3, 2))),
        Sample((rng.normal(size=(2, 3)),), {"mode": "complete"}),
        Sample((rng.normal(size=(2, 0)),), {"mode": "reduced"}),
    ],
    outputs=2,
    grad_name="LinalgQrBackward0",
)


def _geqrf_infer(x: Spec) -> tuple[Spec, Spec]:
    check_matrix("geqrf", x)
    return x, Spec((*x.shape[:-2], min(x.shape[-2:])), x.dtype)


def _geqrf(x: Any) -> tuple[Any, Any]:
    if x.size == 0:
        return x.copy(), np.zeros((*x.shape[:-2], min(x.shape[-2:])), x.dtype)
    packed, tau = lapack.qr(x, mode="raw")
    return np.ascontiguousarray(raw_transpose(packed)), tau


def _geqrf_reference(x: Any) -> tuple[Any, Any]:
    """Householder's reflections, column by column."""
    out, k = np.array(x), min(x.shape[-2:])
    tau = np.zeros((*x.shape[:-2], k))
    for index, a in matrices(out):
        for i in range(k):
            alpha, size = a[i, i], np.linalg.norm(a[i:, i])
            if i + 1 == a.shape[0] or size == 0:
                continue
            beta = -np.copysign(size, alpha)
            v = np.concatenate([[1.0], a[i + 1 :, i] / (alpha - beta)])
            tau[index][i] = (beta - alpha) / beta
            a[i:, i:] -= tau[index][i] * np.outer(v, v @ a[i:, i:])
            a[i + 1 :, i] = v[1:]
    return out, tau


# QR as LAPACK packs it: R above, the reflections' vectors below the diagonal, and their scales.
geqrf = matrix_op(
    "geqrf",
    workspace=4,
    signature=takes(1),
    onnx=rules.NO_GEQRF,
    work=cubic(4 / 3),
    forward=_geqrf,
    infer=_geqrf_infer,
    vjp=None,
    reference=_geqrf_reference,
    samples=lambda rng: [Sample((rng.normal(size=s),)) for s in ((3, 3), (4, 2), (2, 4), (2, 2, 2), (0, 2))],
    outputs=2,
)


def _cholesky_info(x: Any) -> Any:
    if x.dtype.char not in "fd":
        raise TypeError("a floating-point matrix is needed")
    factor = scipy_call("scipy.linalg.lapack", "spotrf" if x.dtype.char == "f" else "dpotrf")
    info = np.zeros(x.shape[:-2], np.int32)
    if x.size:
        for index, matrix in matrices(x):
            info[index] = factor(matrix, lower=True)[1]
    return info


def _cholesky_info_infer(x: Spec) -> Spec:
    check_square("cholesky", x)
    return Spec(x.shape[:-2], int32)


def _cholesky_info_reference(x: Any) -> Any:
    """The first leading minor with a determinant that is not positive."""
    out = np.zeros(x.shape[:-2])
    for index, matrix in matrices(x):
        bad = [k for k in range(1, len(matrix) + 1) if np.linalg.det(matrix[:k, :k]) <= 0]
        out[index] = bad[0] if bad else 0
    return out


# 0 where a matrix is positive definite, else the order of the first leading minor that is not.
cholesky_info = matrix_op(
    "cholesky_info",
    workspace=3,
    signature=takes(1),
    onnx=rules.cholesky_info,
    work=cubic(1 / 3),
    forward=_cholesky_info,
    infer=_cholesky_info_infer,
    vjp=None,
    reference=_cholesky_info_reference,
    samples=lambda rng: [
        Sample((np.array([[2.0, 1.0], [1.0, 2.0]]),)),
        Sample((np.array([[[1.0, 2.0], [2.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]], [[3.0, 0.5], [0.5, 1.0]]]),)),
        Sample((np.zeros((0, 0)),)),
    ],
)
