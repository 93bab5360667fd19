"""Linear systems: inverse, solution of square and triangular systems, pseudo-inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.errors import ShapeError
from wayfare.core.flops import by_solving, cubic
from wayfare.core.op import Sample, checks_values, joint
from wayfare.core.signature import FLAG, takes
from wayfare.core.spec import Spec
from wayfare.ops.linalg import onnx_rotations
from wayfare.ops.linalg import onnx_rules as rules
from wayfare.ops.linalg._matrix import (
    check_batches,
    check_matrix,
    check_square,
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
)

_SINGULAR = "is singular"
_SINGULAR_FIX = "Use wf.linalg.lstsq or wf.linalg.pinv for a system without a unique solution."


def well_conditioned(rng: Any, *shape: int) -> Any:
    """Random square matrices far from singular, for the samples."""
    return rng.normal(size=shape) * 0.4 + 2 * np.eye(shape[-1])


# -- inverse ------------------------------------------------------------------------------------------------


@checks_values
def _inv(x: Any, *, strict: bool) -> Any:
    try:
        return lapack.inv(x)
    except np.linalg.LinAlgError:
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise
        if strict:
            raise fail_at("inv", x, _SINGULAR, raises(np.linalg.inv), _SINGULAR_FIX) from None
    return _each_or_nan(lapack.inv, x, x)


def _each_or_nan(function: Any, like: Any, x: Any, *others: Any) -> Any:
    """One matrix after the other; NaN for those that NumPy refuses."""
    out = np.full(like.shape, np.nan, like.dtype)
    for index, matrix in matrices(x):
        try:
            out[index] = function(matrix, *(other[index] for other in others))
        except np.linalg.LinAlgError:
            pass
    return out


def _inv_vjp(m: Any, g: Any, y: Any, _x: Any, *, strict: bool) -> Any:
    transposed = swap(m, y)
    return -m.matmul(m.matmul(transposed, g), transposed)


inv = matrix_op(
    "inv",
    workspace=4,
    signature=takes(1, strict=FLAG),
    onnx=rules.inv,
    work=cubic(2),
    forward=_inv,
    infer=square("inv"),
    vjp=(_inv_vjp,),
    reference=lambda x, strict: np.linalg.solve(x, np.broadcast_to(np.eye(x.shape[-1]), x.shape)),
    samples=lambda rng: [
        *(Sample((well_conditioned(rng, *s),), {"strict": True}) for s in ((3, 3), (2, 2, 2), (0, 0), (0, 2, 2))),
        Sample((well_conditioned(rng, 3, 3).T,), {"strict": False}),
    ],
    grad_name="LinalgInvExBackward0",
)


# -- square systems -----------------------------------------------------------------------------------------


def _system(op: str) -> Callable[..., Spec]:
    """The shape rule of an op that solves `A @ X = B`."""

    def infer(a: Spec, b: Spec, **_attrs: Any) -> Spec:
        check_square(op, a)
        check_batches(op, a, b)
        if b.shape[-2] != a.shape[-1]:
            raise ShapeError(f"{op}: the sides have different numbers of rows, A {a} and B {b}")
        return b

    return infer


@checks_values
def _solve(a: Any, b: Any, *, strict: bool) -> Any:
    if a.dtype != b.dtype or a.shape[:-2] != b.shape[:-2]:
        raise TypeError("the operands do not fit")
    try:
        return lapack.solve(a, b)
    except np.linalg.LinAlgError:
        if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
            raise
        if strict:
            raise fail_at("solve", a, _SINGULAR, raises(np.linalg.inv), _SINGULAR_FIX) from None
    return _each_or_nan(lapack.solve, b, a, b)


def _solve_vjp(m: Any, needs: tuple[bool, ...], g: Any, y: Any, a: Any, _b: Any, *, strict: bool) -> tuple[Any, Any]:
    by_b = m.solve(swap(m, a), g, strict=strict)
    return (-m.matmul(by_b, swap(m, y)) if needs[0] else None), by_b


solve = matrix_op(
    "solve",
    workspace=4,
    signature=takes(2, strict=FLAG),
    onnx=rules.solve,
    work=by_solving(2 / 3),
    forward=_solve,
    infer=_system("solve"),
    vjp=joint(_solve_vjp),
    reference=lambda a, b, strict: np.linalg.inv(a) @ b,
    samples=lambda rng: [
        Sample((well_conditioned(rng, *a), rng.normal(size=b)), {"strict": strict})
        for a, b, strict in (
            ((3, 3), (3, 2), True),
            ((2, 2, 2), (2, 2, 1), False),
            ((0, 0), (0, 2), True),
            ((2, 2), (2, 0), True),
        )
    ],
    grad_name="LinalgSolveExBackward0",
)


# -- triangular systems -------------------------------------------------------------------------------------


def _triangular(a: Any, b: Any, *, upper: bool, unitriangular: bool) -> Any:
    if a.dtype != b.dtype or a.shape[:-2] != b.shape[:-2] or a.shape[-2:] != (b.shape[-2],) * 2:
        raise TypeError("the operands do not fit")
    # A zero on the diagonal gives inf or nan, as in PyTorch: BLAS, unlike LAPACK, does not check for it.
    solver = scipy_call("scipy.linalg.blas", "strsm" if a.dtype.char == "f" else "dtrsm")
    out = np.empty(b.shape, b.dtype)
    if out.size:
        for index, matrix in matrices(a):
            # The transpose of a C-ordered matrix is in the order BLAS wants, so nothing is copied.
            out[index] = solver(1.0, matrix.T, b[index], lower=upper, trans_a=1, diag=unitriangular)
    return out


def _triangular_vjp(
    m: Any, needs: tuple[bool, ...], g: Any, y: Any, a: Any, _b: Any, *, upper: bool, unitriangular: bool
) -> tuple[Any, Any]:
    by_b = m.solve_triangular(swap(m, a), g, upper=not upper, unitriangular=unitriangular)
    if not needs[0]:
        return None, by_b
    by_a = -m.matmul(by_b, swap(m, y))
    inside = int(unitriangular)
    return (m.triu(by_a, diagonal=inside) if upper else m.tril(by_a, diagonal=-inside)), by_b


def _triangular_reference(a: Any, b: Any, upper: bool, unitriangular: bool) -> Any:
    a = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        a = a - np.einsum("...ii->...i", a)[..., None] * np.eye(a.shape[-1]) + np.eye(a.shape[-1])
    return np.linalg.solve(a, b)


solve_triangular = matrix_op(
    "solve_triangular",
    workspace=1,
    signature=takes(2, upper=FLAG, unitriangular=FLAG),
    onnx=rules.solve_triangular,
    work=by_solving(0),
    forward=_triangular,
    infer=_system("solve_triangular"),
    vjp=joint(_triangular_vjp),
    reference=_triangular_reference,
    samples=lambda rng: [
        Sample((well_conditioned(rng, *a), rng.normal(size=b)), {"upper": upper, "unitriangular": unit})
        for a, b, upper, unit in (
            ((3, 3), (3, 2), True, False),
            ((3, 3), (3, 2), False, True),
            ((2, 2, 2), (2, 2, 1), False, False),
            ((2, 2), (2, 3), True, True),
            ((0, 0), (0, 2), True, False),
        )
    ],
    grad_name="LinalgSolveTriangularBackward0",
)


# -- pseudo-inverse -----------------------------------------------------------------------------------------


def _pinv_infer(x: Spec, atol: Spec, rtol: Spec, *, hermitian: bool) -> Spec:
    check_matrix("pinv", x)
    if hermitian:
        check_square("pinv", x)
    if atol.shape != x.shape[:-2] or rtol.shape != x.shape[:-2]:
        raise ShapeError(f"pinv: tolerances {atol} and {rtol} do not fit matrices {x}")
    return Spec((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)


@checks_values
def _pinv(x: Any, atol: Any, rtol: Any, *, hermitian: bool) -> Any:
    """Singular values below the larger of `atol` and `rtol` times the largest one count as zero."""
    if x.shape[-1] == 0 or x.shape[-2] == 0:
        return np.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    if hermitian:
        s, left = lapack.eigh(x)
        right = left
    else:
        left, s, vh = lapack.svd(x, full_matrices=False)
        right = raw_transpose(vh)
    size = np.abs(s)
    cutoff = np.maximum(atol, rtol * size.max(-1))[..., None]
    kept = size > cutoff
    inverse = np.where(kept, 1 / np.where(kept, s, 1), 0).astype(x.dtype)
    return np.matmul(right * inverse[..., None, :], raw_transpose(left))


def _pinv_vjp(m: Any, g: Any, y: Any, x: Any, _atol: Any, _rtol: Any, *, hermitian: bool) -> Any:
    """The derivative at constant rank (Golub and Pereyra)."""
    yt, gt = swap(m, y), swap(m, g)
    out = -m.matmul(m.matmul(yt, g), yt)
    rows, columns = x.shape[-2:]
    dtype = numpy_dtype(x)
    beyond_rows = m.sub(np.eye(rows, dtype=dtype), m.matmul(x, y))
    out = out + m.matmul(m.matmul(beyond_rows, gt), m.matmul(y, yt))
    beyond_columns = m.sub(np.eye(columns, dtype=dtype), m.matmul(y, x))
    return out + m.matmul(m.matmul(yt, y), m.matmul(gt, beyond_columns))


def _pinv_samples(rng: Any) -> list[Sample]:
    shapes = ((4, 2), (2, 3), (3, 3), (2, 3, 2), (0, 2))
    given = [(rng.normal(size=shape), False) for shape in shapes] + [(np.array([[2.0]]), True)]
    return [
        Sample((x, np.zeros(x.shape[:-2]), np.full(x.shape[:-2], 1e-12)), {"hermitian": hermitian})
        for x, hermitian in given
    ]


pinv = matrix_op(
    "pinv",
    workspace=9,
    signature=takes(3, hermitian=FLAG, mixed=True),
    onnx=onnx_rotations.pinv,
    work=cubic(12),
    forward=_pinv,
    infer=_pinv_infer,
    vjp=(_pinv_vjp, None, None),
    reference=lambda x, atol, rtol, hermitian: np.linalg.pinv(x),
    samples=_pinv_samples,
    grad_name="LinalgPinvBackward0",
)
