"""The cross product of vectors of three elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.autocast import WIDEST_ON_CUDA
from wayfare.core.errors import DTypeError, ShapeError
from wayfare.core.flops import per_output
from wayfare.core.op import Sample
from wayfare.core.quiet import quietly
from wayfare.core.signature import DIM, takes
from wayfare.core.spec import Spec
from wayfare.ops._define import define, in_front
from wayfare.ops.contraction import onnx_rules as rules


def _infer(a: Spec, b: Spec, *, dim: int) -> Spec:
    if a.dtype is not b.dtype:
        raise DTypeError(f"cross: both must have one dtype, not {a} and {b}")
    if a.shape != b.shape or a.shape[dim] != 3:
        raise ShapeError(f"cross: needs equal shapes with size 3 at dim {dim}, not {a} and {b}")
    return a


def _reference(a: Any, b: Any, dim: int) -> Any:
    """Through the Levi-Civita symbol."""
    symbol = np.zeros((3, 3, 3))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        symbol[i, j, k], symbol[i, k, j] = 1, -1
    out = np.einsum("ijk,...j,...k->...i", symbol, np.moveaxis(a, dim, -1), np.moveaxis(b, dim, -1))
    return np.moveaxis(out, -1, dim)


def _cross(a: Any, b: Any, *, dim: int) -> Any:
    with quietly():  # it computes in NumPy's own Python code, whose warnings are not ours to filter
        return np.cross(a, b, axis=dim)


cross = define(
    "cross", autocast=WIDEST_ON_CUDA,
    workspace=1,
    signature=takes(2, dim=DIM),
    onnx=rules.cross,
    family="linear algebra",
    work=per_output(3),
    forward=_cross,
    infer=_infer,
    vjp=(
        lambda m, g, _y, _a, b, *, dim: m.cross(b, g, dim=dim),
        lambda m, g, _y, a, _b, *, dim: m.cross(g, a, dim=dim),
    ),
    batch=in_front("cross"),
    reference=_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=shape), rng.normal(size=shape)), {"dim": dim})
        for shape, dim in (((3,), 0), ((2, 3), 1), ((3, 2), 0), ((2, 3, 2), 1), ((0, 3), 1))
    ],
    kinds="iuf",
    grad_name="LinalgCrossBackward0",
)
