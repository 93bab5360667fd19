"""softmax, log_softmax, logsumexp: one record each, few passes over memory, stable for large inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.core.autocast import FLOAT32_ON_CUDA
from wayfare.core.flops import per_input
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import DIM, takes
from wayfare.ir.fuse.composite import as_rule
from wayfare.ops import _ragged as ragged
from wayfare.ops._define import define, in_front, reduction, shaped_alike, spread
from wayfare.ops.reduction import onnx_rules as rules
from wayfare.ops.reduction.reduce import Dims, drop


def _one(rng: Any) -> Iterable[Sample]:
    for shape, dim in (((2, 5), 1), ((3, 2, 2), 0), ((4,), 0), ((2, 0), 0)):
        yield Sample((rng.normal(size=shape),), {"dim": dim})
    yield Sample((rng.normal(size=(4, 6)).T[::2] * 20,), {"dim": 1})


def _two(rng: Any) -> Iterable[Sample]:
    for shape, dim in (((2, 5), 1), ((3, 2, 2), 0), ((4,), 0)):
        yield Sample((rng.normal(size=shape), -rng.uniform(0.1, 2.0, shape)), {"dim": dim})


# -- softmax ------------------------------------------------------------------------------------------------------


def _softmax(m: Any, x: Any, *, dim: int) -> Any:
    if x.size == 0:
        return m.zeros_like(x)
    e = m.exp(x - m.amax(x, dim=(dim,), keepdim=True))
    return e * (1 / m.sum(e, dim=(dim,), keepdim=True))


softmax = define(
    "softmax", autocast=FLOAT32_ON_CUDA,
    signature=takes(1, dim=DIM),
    onnx=lambda b, x, *, dim: b.node("Softmax", x, axis=dim),
    family="softmax",
    formula=_softmax,
    infer=lambda x, *, dim: x,
    vjp=(lambda m, g, y, _x, *, dim: m.softmax_backward(g, y, dim=dim),),
    batch=in_front("softmax"),
    ragged=ragged.along("softmax", ragged.segment_softmax),
    samples=_one,
    reference=lambda x, dim: np.exp(x) / np.exp(x).sum(axis=dim, keepdims=True),
    kinds="f",
)


def _softmax_backward_by_y(m: Any, h: Any, _z: Any, g: Any, y: Any, *, dim: int) -> Any:
    inner = m.sum(g * y, dim=(dim,), keepdim=True)
    return h * (g - inner) - g * m.sum(h * y, dim=(dim,), keepdim=True)


softmax_backward = define(
    "softmax_backward",
    signature=takes(2, dim=DIM),
    family="softmax",
    work=per_input(4),
    formula=lambda m, g, y, *, dim: (g - m.sum(g * y, dim=(dim,), keepdim=True)) * y,
    infer=shaped_alike("softmax_backward"),
    vjp=(lambda m, h, _z, _g, y, *, dim: m.softmax_backward(h, y, dim=dim), _softmax_backward_by_y),
    batch=in_front("softmax_backward"),
    samples=_two,
    reference=lambda g, y, dim: y * g - y * (y * g).sum(axis=dim, keepdims=True),
)


# -- log_softmax --------------------------------------------------------------------------------------------------


def _log_softmax(m: Any, x: Any, *, dim: int) -> Any:
    if x.size == 0:
        return m.zeros_like(x)
    shifted = x - m.amax(x, dim=(dim,), keepdim=True)
    return shifted - m.log(m.sum(m.exp(shifted), dim=(dim,), keepdim=True))


log_softmax = define(
    "log_softmax", autocast=FLOAT32_ON_CUDA,
    signature=takes(1, dim=DIM),
    onnx=lambda b, x, *, dim: b.node("LogSoftmax", x, axis=dim),
    family="softmax",
    formula=_log_softmax,
    infer=lambda x, *, dim: x,
    vjp=(lambda m, g, y, _x, *, dim: m.log_softmax_backward(g, y, dim=dim),),
    batch=in_front("log_softmax"),
    ragged=ragged.along("log_softmax", ragged.segment_log_softmax),
    samples=_one,
    reference=lambda x, dim: x - np.log(np.exp(x).sum(axis=dim, keepdims=True)),
    kinds="f",
)


def _log_softmax_backward_by_g(m: Any, h: Any, _z: Any, _g: Any, y: Any, *, dim: int) -> Any:
    return h - m.sum(h * m.exp(y), dim=(dim,), keepdim=True)


def _log_softmax_backward_by_y(m: Any, h: Any, _z: Any, g: Any, y: Any, *, dim: int) -> Any:
    return -h * m.exp(y) * m.sum(g, dim=(dim,), keepdim=True)


log_softmax_backward = define(
    "log_softmax_backward",
    signature=takes(2, dim=DIM),
    family="softmax",
    work=per_input(4),
    formula=lambda m, g, y, *, dim: g - m.exp(y) * m.sum(g, dim=(dim,), keepdim=True),
    infer=shaped_alike("log_softmax_backward"),
    vjp=(_log_softmax_backward_by_g, _log_softmax_backward_by_y),
    batch=in_front("log_softmax_backward"),
    samples=_two,
    reference=lambda g, y, dim: g - np.exp(y) * g.sum(axis=dim, keepdims=True),
)


# -- logsumexp ----------------------------------------------------------------------------------------------------


def _logsumexp(m: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    if x.size == 0:
        return m.log(m.sum(x, dim=dim, keepdim=keepdim))
    top = m.amax(x, dim=dim, keepdim=True)
    # An infinite maximum is the result; subtracting it would give NaN.
    shift = m.where(m.isfinite(top), top, m.zeros_like(top))
    return drop(m, m.log(m.sum(m.exp(x - shift), dim=dim, keepdim=True)) + shift, dim, keepdim)


def _logsumexp_gradient(m: Any, g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    shape = tuple(x.shape)
    y = spread(m, y, dim, keepdim, shape)
    # If all elements are minus infinity, no element has a share.
    share = m.where(y == -math.inf, m.zeros_like(x), m.exp(x - y))
    return spread(m, g, dim, keepdim, shape) * share


_logsumexp_vjp = as_rule(_logsumexp_gradient, name="logsumexp_backward")


def _logsumexp_reference(x: Array, dim: Dims, keepdim: bool) -> Any:
    return np.log(np.sum(np.exp(x), axis=dim, keepdims=keepdim))


logsumexp = reduction(
    "logsumexp", autocast=FLOAT32_ON_CUDA,
    onnx=rules.log_sum_exp, formula=_logsumexp, work=per_input(4), vjp=_logsumexp_vjp,
    reference=_logsumexp_reference, kinds="f", of_segments=ragged.segment_logsumexp,
)
