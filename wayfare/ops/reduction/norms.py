"""The norm of vectors: (sum |x|^p)^(1/p) over some dimensions, and its limits p = 0, inf, -inf."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.core.autocast import FLOAT32_ON_CUDA
from wayfare.core.flops import per_input
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import NUMBER
from wayfare.ir.fuse.composite import as_rule
from wayfare.ops._define import reduction, spread
from wayfare.ops.reduction.reduce import Dims, like

# Below this size two or three NumPy calls are faster.
_NATIVE_FROM = 4096


def _norm(m: Any, x: Any, *, dim: Dims, keepdim: bool, p: float) -> Any:
    if p == 2:
        return m.sqrt(m.sum(x * x, dim=dim, keepdim=keepdim))
    if p == 0:
        return m.sum(like(m, x != 0, x), dim=dim, keepdim=keepdim)
    size = m.abs(x)
    if p == math.inf:
        return m.amax(size, dim=dim, keepdim=keepdim)
    if p == -math.inf:
        return m.amin(size, dim=dim, keepdim=keepdim)
    if p == 1:
        return m.sum(size, dim=dim, keepdim=keepdim)
    return m.pow(m.sum(m.pow(size, p), dim=dim, keepdim=keepdim), 1 / p)


def _sign(m: Any, x: Any) -> Any:
    return like(m, x > 0, x) - like(m, x < 0, x)


def _norm_gradient(m: Any, g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool, p: float) -> Any:
    shape = tuple(x.shape)
    g = spread(m, g, dim, keepdim, shape)
    if p == 0:
        return m.zeros_like(g)
    if p == 1:
        return g * _sign(m, x)
    y = spread(m, y, dim, keepdim, shape)
    zero, one = m.zeros_like(x), m.zeros_like(x) + 1
    if p == 2:
        flat = y == 0
        return m.where(flat, zero, g * (x / m.where(flat, one, y)))
    sign = _sign(m, x)
    if p == math.inf or p == -math.inf:
        # Equal extremes share the gradient evenly; a NaN has no sign, and so no gradient.
        at = m.logical_or(x * sign == y, x != x)
        return m.gate(g * sign / m.sum(like(m, at, x), dim=dim, keepdim=True), at)
    # Where the gradient does not exist it is 0: at the element 0 for p < 1, at a zero vector for larger p.
    flat = x == 0 if p < 1 else y == 0
    size = m.where(x == 0, zero if p > 1 else one, x * sign)
    ratio = m.pow(size / m.where(flat, one, y), m.zeros_like(x) + (p - 1))
    return m.where(flat, zero, g * sign * ratio)


_norm_vjp = as_rule(_norm_gradient, name="vector_norm_backward", native_from=_NATIVE_FROM)


def _norm_samples(rng: Any) -> Iterable[Sample]:
    for p in (2.0, 1.0, 3.0, 1.5, 0.5, -1.0, math.inf, -math.inf, 0.0):
        for dim, keepdim in (((0,), False), ((0, 2), True), ((0, 1, 2), False)):
            x = rng.uniform(0.3, 2.0, (3, 2, 2)) * rng.choice([-1, 1], (3, 2, 2))
            yield Sample((x,), {"dim": dim, "keepdim": keepdim, "p": p})
    yield Sample((rng.normal(size=()),), {"dim": (), "keepdim": False, "p": 2.0})
    yield Sample((rng.normal(size=(2, 0)),), {"dim": (1,), "keepdim": False, "p": 2.0})


def _norm_reference(x: Array, dim: Dims, keepdim: bool, p: float) -> Any:
    if x.ndim == 0:
        return np.abs(x)
    others = tuple(d for d in range(x.ndim) if d not in dim)
    rows = x.transpose(others + dim).reshape(*(x.shape[d] for d in others), math.prod(x.shape[d] for d in dim))
    out = np.linalg.norm(rows, ord=p, axis=-1)
    return np.expand_dims(out, dim) if keepdim else out


vector_norm = reduction(
    "vector_norm", autocast=FLOAT32_ON_CUDA, attrs={"p": NUMBER},
    formula=_norm, work=per_input(2), native_from=_NATIVE_FROM, vjp=_norm_vjp, samples=_norm_samples,
    reference=_norm_reference, kinds="f",
    grad_name="LinalgVectorNormBackward0",
)  # fmt: skip


def _each_largest_gradient(m: Any, g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    shape, sign = tuple(x.shape), _sign(m, x)
    at = x * sign == spread(m, y, dim, keepdim, shape)
    return m.gate(spread(m, g, dim, keepdim, shape) * sign, at)


_each_largest_vjp = as_rule(_each_largest_gradient, name="largest_distance_backward", native_from=_NATIVE_FROM)


# The largest absolute value as `cdist` and `pdist` have it: each of several that are equal has the whole gradient.
largest_distance = reduction(
    "largest_distance", work=per_input(2), native_from=_NATIVE_FROM, vjp=_each_largest_vjp, kinds="f",
    formula=lambda m, x, *, dim, keepdim: m.amax(m.abs(x), dim=dim, keepdim=keepdim),
    reference=lambda x, dim, keepdim: np.max(np.abs(x), axis=dim, keepdims=keepdim), empty=False,
)  # fmt: skip
