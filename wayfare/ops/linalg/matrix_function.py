"""Functions of a whole matrix: determinant and its logarithm, exponential."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.flops import cubic
from wayfare.core.op import Sample
from wayfare.core.signature import takes
from wayfare.core.spec import Spec
from wayfare.ops.linalg import onnx_rules as rules
from wayfare.ops.linalg._matrix import check_square, lapack, matrices, matrix_op, scipy_call, square, swap
from wayfare.ops.linalg.solve import well_conditioned


def _as_scale(m: Any, v: Any) -> Any:
    """A number for each matrix, shaped to multiply the matrices."""
    return m.reshape(v, shape=(*v.shape, 1, 1))


# -- determinant --------------------------------------------------------------------------------------------


def _scalar_infer(op: str, x: Spec) -> Spec:
    check_square(op, x)
    return Spec(x.shape[:-2], x.dtype)


_SQUARES = ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 2, 2))


def _det_reference(x: Any) -> Any:
    """Laplace's expansion along the first row."""
    if x.ndim > 2:
        return np.array([_det_reference(part) for part in x]).reshape(x.shape[:-2])
    if x.shape[0] == 0:
        return np.float64(1.0)
    minors = [np.delete(x[1:], j, axis=1) for j in range(x.shape[0])]
    return np.float64(sum((-1) ** j * x[0, j] * _det_reference(minor) for j, minor in enumerate(minors)))


det = matrix_op(
    "det",
    signature=takes(1),
    onnx="Det",
    work=cubic(2 / 3),
    forward=lambda x: np.asarray(lapack.det(x), x.dtype),
    infer=lambda x: _scalar_infer("det", x),
    vjp=(lambda m, g, _y, x: m.mul(_as_scale(m, g), m.cofactors(x)),),
    reference=_det_reference,
    samples=lambda rng: [Sample((well_conditioned(rng, *shape),)) for shape in _SQUARES],
    grad_name="LinalgDetBackward0",
)


def _cofactors(x: Any) -> Any:
    try:
        inverse = lapack.inv(x)
    except np.linalg.LinAlgError:
        return _cofactors_of_singular(x)
    return lapack.det(x)[..., None, None] * inverse.swapaxes(-1, -2)


def _cofactors_of_singular(x: Any) -> Any:
    """From the singular values: no division by the determinant, so it holds for singular matrices as well."""
    out = np.empty(x.shape, x.dtype)
    for index, matrix in matrices(x):
        u, s, vh = lapack.svd(matrix)
        others = np.array([np.prod(np.delete(s, i)) for i in range(len(s))], x.dtype)
        out[index] = lapack.det(u) * lapack.det(vh) * ((u * others) @ vh)
    return out


def _cofactors_vjp(m: Any, g: Any, y: Any, x: Any) -> Any:
    inner = _as_scale(m, m.sum(m.mul(g, y), dim=(x.ndim - 2, x.ndim - 1), keepdim=False))
    outer = m.matmul(m.matmul(y, swap(m, g)), y)
    return m.div(m.sub(m.mul(inner, y), outer), _as_scale(m, m.det(x)))


def _cofactors_reference(x: Any) -> Any:
    out = np.empty(x.shape)
    for index, matrix in matrices(x):
        for i, j in np.ndindex(matrix.shape):
            minor = np.delete(np.delete(matrix, i, axis=0), j, axis=1)
            out[index][i, j] = (-1) ** (i + j) * _det_reference(minor)
    return out


# The derivative of the determinant: det(x) times the transposed inverse, where there is one.
cofactors = matrix_op(
    "cofactors",
    signature=takes(1),
    onnx=rules.NO_COFACTORS,
    work=cubic(12),
    forward=_cofactors,
    infer=square("det"),
    vjp=(_cofactors_vjp,),
    reference=_cofactors_reference,
    samples=lambda rng: [
        *(Sample((well_conditioned(rng, *shape),)) for shape in _SQUARES),
        Sample((np.array([[1.0, 2.0], [2.0, 4.0]]),), smooth=False),
        Sample((np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 0.5], [0.3, 0.0, 1.5]]),), smooth=False),
    ],
)


def _slogdet_infer(x: Spec) -> tuple[Spec, Spec]:
    out = _scalar_infer("slogdet", x)
    return out, out


def _slogdet(x: Any) -> tuple[Any, Any]:
    sign, log = lapack.slogdet(x)
    return np.asarray(sign, x.dtype), np.asarray(log, x.dtype)


def _slogdet_reference(x: Any) -> tuple[Any, Any]:
    value = _det_reference(x)
    return np.sign(value), np.log(np.abs(value))


slogdet = matrix_op(
    "slogdet",
    signature=takes(1),
    onnx=rules.slogdet,
    work=cubic(2 / 3),
    forward=_slogdet,
    infer=_slogdet_infer,
    vjp=(lambda m, g, _y, x: m.mul(_as_scale(m, g[1]), swap(m, m.inv(x, strict=True))),),
    reference=_slogdet_reference,
    samples=lambda rng: [
        *(Sample((well_conditioned(rng, *shape),)) for shape in _SQUARES),
        Sample((np.array([[0.5, 2.0], [1.5, 1.0]]),)),
    ],
    outputs=2,
    grad_name="LinalgSlogdetBackward0",
)


# -- exponential --------------------------------------------------------------------------------------------


def _exp(x: Any) -> Any:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or x.dtype.char not in "fd":
        raise TypeError("a square floating-point matrix is needed")
    if x.size == 0:
        return x.copy()
    # In double precision, because scaling and squaring makes the rounding errors grow.
    return np.asarray(scipy_call("scipy.linalg", "expm")(x.astype(np.float64)), x.dtype)


def _exp_vjp(m: Any, g: Any, _y: Any, x: Any) -> Any:
    """The derivative in the direction g is a corner of the exponential of a matrix of twice the size."""
    transposed = swap(m, x)
    n, rows, columns = x.shape[-1], x.ndim - 2, x.ndim - 1
    upper = m.cat(transposed, g, dim=columns)
    lower = m.cat(m.zeros_like(transposed), transposed, dim=columns)
    big = m.matrix_exp(m.cat(upper, lower, dim=rows))
    corner = m.slice(big, dim=rows, start=0, stop=n, step=1)
    return m.slice(corner, dim=columns, start=n, stop=2 * n, step=1)


def _exp_reference(x: Any) -> Any:
    """The Taylor series of x / 1024, squared ten times."""
    small, term = x / 1024, np.broadcast_to(np.eye(x.shape[-1]), x.shape)
    total = term
    for k in range(1, 12):
        term = term @ small / k
        total = total + term
    for _ in range(10):
        total = total @ total
    return total


matrix_exp = matrix_op(
    "matrix_exp",
    workspace=8,
    signature=takes(1),
    onnx=rules.matrix_exp,
    work=cubic(20),
    forward=_exp,
    infer=square("matrix_exp"),
    vjp=(_exp_vjp,),
    reference=_exp_reference,
    samples=lambda rng: [Sample((rng.normal(size=shape),)) for shape in ((3, 3), (2, 2, 2), (0, 0))],
    grad_name="LinalgMatrixExpBackward0",
)
