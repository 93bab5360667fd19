"""softmax, log_softmax, logsumexp: one record each, few passes over memory, stable for large inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.backend.fold import largest, total, total_of_product
from wayfare.op import BatchRule, Sample
from wayfare.ops._define import define, expand_unbatched, reduction, spread
from wayfare.ops.reduce import Dims


def _batch_along(name: str) -> BatchRule:
    def batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        full = expand_unbatched(m, size, inputs, batched)
        return getattr(m, name)(*full, dim=attrs["dim"] + 1)

    return batch


def _one(rng: Any) -> Iterable[Sample]:
    for shape, dim in (((2, 5), 1), ((3, 2, 2), 0), ((4,), 0), ((2, 0), 0)):
        yield Sample((rng.normal(size=shape),), {"dim": dim})
    yield Sample((rng.normal(size=(4, 6)).T[::2] * 20,), {"dim": 1})


def _two(rng: Any) -> Iterable[Sample]:
    for shape, dim in (((2, 5), 1), ((3, 2, 2), 0), ((4,), 0)):
        yield Sample((rng.normal(size=shape), -rng.uniform(0.1, 2.0, shape)), {"dim": dim})


def exp_shifted(x: Array, dim: int) -> tuple[Array, Array]:
    """exp(x - max along dim), and that maximum."""
    top = largest(x, (dim,), True)
    shifted = np.subtract(x, top)
    return np.exp(shifted, out=shifted), top


# -- softmax ------------------------------------------------------------------------------------------------------


def _softmax(x: Array, *, dim: int) -> Array:
    if x.size == 0:
        return np.zeros_like(x)
    out, _ = exp_shifted(x, dim)
    out /= total(out, (dim,), True)
    return out


softmax = define(
    "softmax",
    family="softmax",
    forward=_softmax,
    infer=lambda x, *, dim: x,
    vjp=(lambda m, g, y, _x, *, dim: m.softmax_backward(g, y, dim=dim),),
    batch=_batch_along("softmax"),
    samples=_one,
    reference=lambda x, dim: np.exp(x) / np.exp(x).sum(axis=dim, keepdims=True),
    kinds="f",
)


def _softmax_backward(g: Array, y: Array, *, dim: int) -> Any:
    out = np.subtract(g, total_of_product(g, y, (dim,), True), order="C")
    out *= y
    return out


def _softmax_backward_by_y(m: Any, h: Any, _z: Any, g: Any, y: Any, *, dim: int) -> Any:
    inner = m.sum(g * y, dim=(dim,), keepdim=True)
    return h * (g - inner) - g * m.sum(h * y, dim=(dim,), keepdim=True)


softmax_backward = define(
    "softmax_backward",
    family="softmax",
    forward=_softmax_backward,
    infer=lambda g, y, *, dim: g,
    vjp=(lambda m, h, _z, _g, y, *, dim: m.softmax_backward(h, y, dim=dim), _softmax_backward_by_y),
    batch=_batch_along("softmax_backward"),
    samples=_two,
    reference=lambda g, y, dim: y * g - y * (y * g).sum(axis=dim, keepdims=True),
)


# -- log_softmax --------------------------------------------------------------------------------------------------


def _log_softmax(x: Array, *, dim: int) -> Any:
    if x.size == 0:
        return np.zeros_like(x)
    top = largest(x, (dim,), True)
    out = np.subtract(x, top)
    out -= np.log(total(np.exp(out), (dim,), True))
    return out


log_softmax = define(
    "log_softmax",
    family="softmax",
    forward=_log_softmax,
    infer=lambda x, *, dim: x,
    vjp=(lambda m, g, y, _x, *, dim: m.log_softmax_backward(g, y, dim=dim),),
    batch=_batch_along("log_softmax"),
    samples=_one,
    reference=lambda x, dim: x - np.log(np.exp(x).sum(axis=dim, keepdims=True)),
    kinds="f",
)


def _log_softmax_backward(g: Array, y: Array, *, dim: int) -> Any:
    out = np.exp(y)
    out *= total(g, (dim,), True)
    return np.subtract(g, out, out=out)


def _log_softmax_backward_by_g(m: Any, h: Any, _z: Any, _g: Any, y: Any, *, dim: int) -> Any:
    return h - m.sum(h * m.exp(y), dim=(dim,), keepdim=True)


def _log_softmax_backward_by_y(m: Any, h: Any, _z: Any, g: Any, y: Any, *, dim: int) -> Any:
    return -h * m.exp(y) * m.sum(g, dim=(dim,), keepdim=True)


log_softmax_backward = define(
    "log_softmax_backward",
    family="softmax",
    forward=_log_softmax_backward,
    infer=lambda g, y, *, dim: g,
    vjp=(_log_softmax_backward_by_g, _log_softmax_backward_by_y),
    batch=_batch_along("log_softmax_backward"),
    samples=_two,
    reference=lambda g, y, dim: g - np.exp(y) * g.sum(axis=dim, keepdims=True),
)


# -- logsumexp ----------------------------------------------------------------------------------------------------


def _logsumexp(x: Array, *, dim: Dims, keepdim: bool) -> Any:
    if not math.prod(x.shape[d] for d in dim):
        return np.log(total(x, dim, keepdim))
    top = largest(x, dim, True)
    # An infinite maximum is the result; subtracting it would give NaN.
    shift = np.where(np.isfinite(top), top, x.dtype.type(0))
    shifted = np.asarray(np.subtract(x, shift))
    out = np.log(total(np.exp(shifted, out=shifted), dim, True))
    out += shift
    return out if keepdim else out.reshape(tuple(n for d, n in enumerate(x.shape) if d not in dim))


def _logsumexp_vjp(m: Any, g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    shape = tuple(x.shape)
    y = spread(m, y, dim, keepdim, shape)
    # All of minus infinity: no element has a share.
    share = m.where(y == -math.inf, m.zeros_like(x), m.exp(x - y))
    return spread(m, g, dim, keepdim, shape) * share


def _logsumexp_reference(x: Array, dim: Dims, keepdim: bool) -> Any:
    return np.log(np.sum(np.exp(x), axis=dim, keepdims=keepdim))


logsumexp = reduction(
    "logsumexp", forward=_logsumexp, vjp=_logsumexp_vjp, reference=_logsumexp_reference, kinds="f"
)


