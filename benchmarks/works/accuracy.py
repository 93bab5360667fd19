"""How far reductions, scans, norms and losses of one library are from the exact result: forward and gradient.

Every side gets the same numbers. The exact result is that of NumPy in extended precision where it is a line to write,
else the library's own in float64 (so float64 is measured where NumPy is the judge). An error is the largest distance
from the exact result, as a part of its largest number, in units of the dtype's epsilon: 0.5 is the best there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., Any]
AXES = ("last", "first", "all")
# What numbers a case is fed: normal ones moved away from zero, the same without, or ones whose products stay small.
OFFSET, SMALL, NEAR_1 = "offset", "small", "near 1"


@dataclass(frozen=True)
class Case:
    """`function(m, x, dim)`, and `exact(x, axis)` in NumPy if that is easy; `data` says what numbers it is fed."""

    group: str
    function: Function
    exact: Function | None = None
    axes: tuple[str, ...] = AXES
    data: str = OFFSET
    long: bool = False


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _log_sum(x: Array, axis: Any) -> Any:
    top = x.max(axis=axis, keepdims=True)
    return (np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top).squeeze(axis)


def _standard(x: Array, axis: Any) -> Array:
    return (x - x.mean(axis=axis, keepdims=True)) / np.sqrt(x.var(axis=axis, keepdims=True) + 1e-5)


def _by(name: str) -> Function:
    """A function of the module that takes the dimension."""
    return lambda m, x, dim: getattr(m, name)(x, dim=dim)


def _loss(name: str, **attrs: Any) -> Function:
    """A loss of two halves of the rows, averaged or summed."""

    def function(m: Any, x: Any, _dim: Any) -> Any:
        half = x.shape[0] // 2
        return getattr(m.nn.functional, name)(x[:half], x[half:], **attrs)

    return function


def _of_classes(name: str, reduction: str) -> Function:
    def function(m: Any, x: Any, _dim: Any) -> Any:
        target = m.tensor(np.arange(x.shape[0]) % x.shape[1])
        scores = m.nn.functional.log_softmax(x, dim=1) if name == "nll_loss" else x
        return getattr(m.nn.functional, name)(scores, target, reduction=reduction)

    return function


def _probabilities(name: str) -> Function:
    def function(m: Any, x: Any, _dim: Any) -> Any:
        half = x.shape[0] // 2
        given = x[:half] if name == "binary_cross_entropy_with_logits" else x[:half].sigmoid()
        return getattr(m.nn.functional, name)(given, x[half:].sigmoid())

    return function


def _divergence(m: Any, x: Any, _dim: Any) -> Any:
    half, f = x.shape[0] // 2, m.nn.functional
    return f.kl_div(f.log_softmax(x[:half], dim=1), f.softmax(x[half:], dim=1), reduction="batchmean")


def _norm(p: float) -> Function:
    return lambda m, x, dim: m.linalg.vector_norm(x, p, dim=dim)


def _exact_norm(p: float) -> Function:
    return lambda x, axis: (np.abs(x) ** np.longdouble(p)).sum(axis=axis) ** (1 / np.longdouble(p))


_ROWS = ("last",)
_ONE = ("last", "first")
_WHOLE = ("all",)

def _covariance(x: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred @ centred.T / (x.shape[1] - 1)


def _weighted(m: Any, x: Any, _dim: Any) -> Any:
    ones = m.ones(x.shape[1], dtype=x.dtype)
    return m.nn.functional.layer_norm(x, x.shape[1:], ones, ones - 1)


def _added(m: Any, x: Any, _dim: Any) -> Any:
    return m.zeros(3, x.shape[1], dtype=x.dtype).index_add(0, m.tensor(np.arange(x.shape[0]) % 3), x)


def _looked_up(m: Any, x: Any, _dim: Any) -> Any:
    return m.nn.functional.embedding(m.tensor(np.arange(5000) % 4), x)


def _alike(m: Any, x: Any, _dim: Any) -> Any:
    return m.nn.functional.cosine_embedding_loss(x, x.flip(0), m.ones(x.shape[0]))


def _triplets(m: Any, x: Any, _dim: Any) -> Any:
    return m.nn.functional.triplet_margin_loss(x, x.flip(0), x.roll(1, 0))


def _sum(x: Array, axis: Any) -> Any:
    return x.sum(axis=axis)


def _variance(x: Array, axis: Any) -> Any:
    return x.var(axis=axis, ddof=1)


def _product(m: Any, x: Any, dim: Any) -> Any:
    return x.prod() if dim is None else x.prod(dim)


def _all_dims(x: Any, dim: Any) -> Any:
    return tuple(range(x.ndim)) if dim is None else dim


def _layer(name: str, *args: Any, **attrs: Any) -> Function:
    """A function of torch.nn.functional, of rows seen as 8 channels."""
    return lambda m, x, _dim: getattr(m.nn.functional, name)(x.reshape(x.shape[0], 8, -1), *args, **attrs)


def _over_rows(name: str) -> Function:
    return lambda m, x, _dim: getattr(m.nn.functional, name)(x, x.shape[1:])


def _beside(name: str) -> Function:
    """A distance of the rows from the same rows in another order."""
    return lambda m, x, _dim: getattr(m.nn.functional, name)(x, x.flip(0))


CASES: dict[str, Case] = {
    "sum": Case("sums", _by("sum"), _sum, long=True),
    "mean": Case("sums", _by("mean"), lambda x, a: x.mean(axis=a), long=True),
    "nansum": Case("sums", _by("nansum"), _sum),
    "nanmean": Case("sums", _by("nanmean"), lambda x, a: x.mean(axis=a)),
    "prod": Case("sums", _product, np.prod, data=NEAR_1),
    "logsumexp": Case("sums", lambda m, x, d: m.logsumexp(x, _all_dims(x, d)), _log_sum, long=True),
    "trapezoid": Case("sums", _by("trapezoid"), axes=_ONE),
    "sum_to_size": Case("sums", lambda m, x, d: x.sum_to_size(1, x.shape[1]), axes=_WHOLE),
    "index_add": Case("sums", _added, axes=_WHOLE),
    "var": Case("spreads", _by("var"), _variance, long=True),
    "std": Case("spreads", _by("std"), lambda x, a: x.std(axis=a, ddof=1), long=True),
    "var_mean": Case("spreads", lambda m, x, d: m.var_mean(x, dim=d)[0], _variance),
    "cov": Case("spreads", lambda m, x, d: m.cov(x), lambda x, a: _covariance(x), _WHOLE),
    "corrcoef": Case("spreads", lambda m, x, d: m.corrcoef(x), axes=_WHOLE),
    "cumsum": Case("scans", _by("cumsum"), np.cumsum, _ONE, long=True),
    "cumprod": Case("scans", _by("cumprod"), np.cumprod, _ONE, NEAR_1, long=True),
    "logcumsumexp": Case("scans", _by("logcumsumexp"), np.logaddexp.accumulate, _ONE, long=True),
    "cumulative_trapezoid": Case("scans", _by("cumulative_trapezoid"), axes=_ONE),
    "norm, p = 2": Case("norms", _norm(2), _exact_norm(2), long=True),
    "norm, p = 1": Case("norms", _norm(1), _exact_norm(1)),
    "norm, p = 3": Case("norms", _norm(3), _exact_norm(3)),
    "norm, p = 0.5": Case("norms", _norm(0.5), _exact_norm(0.5)),
    "normalize": Case("norms", lambda m, x, d: m.nn.functional.normalize(x, dim=d), axes=_ONE),
    "cosine_similarity": Case("norms", _beside("cosine_similarity"), axes=_WHOLE),
    "pairwise_distance": Case("norms", _beside("pairwise_distance"), axes=_WHOLE),
    "cdist": Case("norms", lambda m, x, d: m.cdist(x[:32], x[32:64]), axes=_WHOLE),
    "softmax": Case("softmax", _by("softmax"), _softmax, _ONE, long=True),
    "log_softmax": Case("softmax", _by("log_softmax"), lambda x, a: x - np.expand_dims(_log_sum(x, a), a), _ONE),
    "layer_norm": Case("layers", _over_rows("layer_norm"), _standard, _ROWS, long=True),
    "layer_norm, weight": Case("layers", _weighted, _standard, _ROWS),
    "rms_norm": Case("layers", _over_rows("rms_norm"), axes=_ROWS),
    "batch_norm": Case("layers", _layer("batch_norm", None, None, training=True), axes=_ROWS),
    "group_norm": Case("layers", _layer("group_norm", 4), axes=_ROWS),
    "instance_norm": Case("layers", _layer("instance_norm"), axes=_ROWS),
    "avg_pool1d": Case("layers", _layer("avg_pool1d", 16), axes=_ROWS),
    "adaptive_avg_pool1d": Case("layers", _layer("adaptive_avg_pool1d", 1), axes=_ROWS),
    "embedding": Case("layers", _looked_up, axes=_WHOLE),
    "matmul": Case("layers", lambda m, x, d: x @ x.T, lambda x, a: x @ x.T, _WHOLE),
    "x + a row": Case("layers", lambda m, x, d: x + x[0], axes=_WHOLE),
    "mse_loss": Case("losses", _loss("mse_loss"), axes=_WHOLE, long=True),
    "mse_loss, sum": Case("losses", _loss("mse_loss", reduction="sum"), axes=_WHOLE),
    "l1_loss": Case("losses", _loss("l1_loss"), axes=_WHOLE),
    "smooth_l1_loss": Case("losses", _loss("smooth_l1_loss"), axes=_WHOLE),
    "huber_loss": Case("losses", _loss("huber_loss"), axes=_WHOLE),
    "cross_entropy": Case("losses", _of_classes("cross_entropy", "mean"), axes=_WHOLE),
    "cross_entropy, sum": Case("losses", _of_classes("cross_entropy", "sum"), axes=_WHOLE),
    "nll_loss": Case("losses", _of_classes("nll_loss", "mean"), axes=_WHOLE),
    "kl_div": Case("losses", _divergence, axes=_WHOLE),
    "binary_cross_entropy": Case("losses", _probabilities("binary_cross_entropy"), axes=_WHOLE, data=SMALL),
    "…, with logits": Case("losses", _probabilities("binary_cross_entropy_with_logits"), axes=_WHOLE, data=SMALL),
    "poisson_nll_loss": Case("losses", _loss("poisson_nll_loss"), axes=_WHOLE, data=SMALL),
    "cosine_embedding_loss": Case("losses", _alike, axes=_WHOLE),
    "triplet_margin_loss": Case("losses", _triplets, axes=_WHOLE),
}


def numbers(data: str, offset: float, shape: tuple[int, ...], dtype: str) -> Array:
    """The numbers of a measurement, in `dtype`."""
    found = np.random.default_rng(3).standard_normal(shape)
    if data == NEAR_1:
        found = 1 + found / max(max(shape), 100)
    elif data == OFFSET:
        found = found + offset
    return found.astype(dtype)


def errors(
    m: Any, name: str, dtype: str, offset: float, shape: tuple[int, ...], axis: str, turned: bool, compiled: bool
) -> list[float | None]:
    """The errors of a case, [forward, gradient], in epsilons; None where nobody is to judge."""
    return _errors(m, name, dtype, offset, shape, axis, [(turned, compiled)])[0]


def worst(m: Any, name: str, dtype: str, offset: float, shape: tuple[int, ...]) -> list[float | None]:
    """The largest errors of a case along all its axes, as the array lies and turned, plain and compiled."""
    # PyTorch is measured plain.
    ways = [(turned, compiled) for turned in (False, True) for compiled in (False, True)[: 1 + hasattr(m, "batching")]]
    made = [e for axis in CASES[name].axes for e in _errors(m, name, dtype, offset, shape, axis, ways)]
    found = [[e for e in column if e is not None] for column in zip(*made, strict=True)]
    return [max(figures) if figures else None for figures in found]


def _errors(
    m: Any, name: str, dtype: str, offset: float, shape: tuple[int, ...], axis: str, ways: list[tuple[bool, bool]]
) -> list[list[float | None]]:
    """The errors in each of some ways, (turned, compiled)."""
    case = CASES[name]
    x = numbers(case.data, offset, tuple(shape), dtype)
    dim = {"last": x.ndim - 1, "first": 0, "all": None}[axis]
    wide: Any = (None, None)
    if dtype != "float64":
        wide = _computed(m, case, x.astype(np.float64), dim, False, False)
    exact = wide[0] if case.exact is None else case.exact(x.astype(np.longdouble), dim)
    unit = float(np.finfo(dtype).eps)
    found = []
    for turned, compiled in ways:
        values, slope = _computed(m, case, x, dim, turned, compiled)
        found.append([_distance(values, exact, unit), _distance(slope, wide[1], unit)])
    return found


def long(m: Any, name: str, offset: float, length: int) -> list[float | None]:
    """The errors of a case on one long row of float32."""
    case = CASES[name]
    shape = (2, length // 2) if case.group == "losses" else (1, length) if case.group == "layers" else (length,)
    return errors(m, name, "float32", offset, shape, case.axes[0], False, False)


def _computed(m: Any, case: Case, x: Array, dim: Any, turned: bool, compiled: bool) -> tuple[Array, Array | None]:
    leaf = m.tensor(np.ascontiguousarray(x.T) if turned else x, requires_grad=True)

    def function(t: Any) -> Any:
        return case.function(m, t.T if turned else t, dim)

    out = (m.compile(function) if compiled else function)(leaf)
    if not out.requires_grad:
        return out.numpy(), None
    weights = np.random.default_rng(4).standard_normal(tuple(out.shape)).astype(x.dtype)
    (slope,) = m.autograd.grad(out, leaf, m.tensor(weights))
    found = np.array(slope.numpy())
    return np.array(out.detach().numpy()), found.T if turned else found


def _distance(got: Array | None, exact: Any, unit: float) -> float | None:
    if got is None or exact is None:
        return None
    largest = np.abs(exact).max()
    if not np.isfinite(largest) or largest == 0:
        return None
    return float(np.abs(got.astype(np.longdouble) - exact).max() / largest) / unit
