"""Reductions: sums, means, products and truth values along some dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from wayfare.codegen.routines.short_reductions import total
from wayfare.core.autocast import FLOAT32, FLOAT32_ON_CUDA
from wayfare.core.flops import per_input
from wayfare.core.op import Sample
from wayfare.core.signature import NUMBER
from wayfare.core.spec import NARROW, DType, Spec, as_dtype, bool_, float32, float64, int64, uint8
from wayfare.ir.fuse.composite import as_rule
from wayfare.ops import _ragged as ragged
from wayfare.ops._define import reduced_shape, reduction, spread
from wayfare.ops.reduction import onnx_rules as rules

Dims = tuple[int, ...]


def count_of(shape: tuple[int, ...], dim: Dims) -> int:
    """How many numbers are reduced to one."""
    return math.prod([shape[d] for d in dim])


def drop(m: Any, value: Any, dim: Dims, keepdim: bool) -> Any:
    """A value reduced over `dim` with size-1 dimensions kept: drop those dimensions unless `keepdim`."""
    return value if keepdim else m.reshape(value, shape=reduced_shape(value.shape, dim, False))


def like(m: Any, value: Any, model: Any) -> Any:
    """A mask or a count in the dtype of `model`, so that arithmetic with it keeps that dtype."""
    return m.cast(value, dtype=as_dtype(model.dtype))


# -- sum and mean -------------------------------------------------------------------------------------------------


def sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum: bools and integers are summed in int64."""
    return dtype if dtype.is_floating_point else int64


def _sum(x: Any, *, dim: Dims, keepdim: bool) -> Any:
    if x.dtype.kind == "f":
        return total(x, dim, keepdim)
    # Integers and bools are summed in int64, as PyTorch does.
    return np.sum(x, axis=dim, keepdims=keepdim, dtype=np.int64)


def _sum_vjp(m: Any, g: Any, _y: Any, x_spec: Spec, *, dim: Dims, keepdim: bool) -> Any:
    return spread(m, g, dim, keepdim, x_spec.shape)


sum_ = reduction(
    "sum", autocast=FLOAT32_ON_CUDA, loop_reduction="sum", fusible_gradient=True,
    onnx=rules.reduction("ReduceSum", of_integers=int64), forward=_sum, vjp=_sum_vjp, dtype=sum_dtype,
    of_segments=ragged.segment_sum,
    reference=lambda x, dim, keepdim: np.sum(x, axis=dim, keepdims=keepdim),
)  # fmt: skip


# One NumPy call and a division: a native loop is not faster before a second thread helps.
_MEAN_FROM = 32768


def _mean(m: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    return m.sum(x, dim=dim, keepdim=keepdim) / count_of(x.shape, dim)


def shared_out(m: Any, g: Any, count: int, dtype: DType) -> Any:
    """g / count, in single precision for halves, which cannot hold a count above 65,504."""
    if dtype not in NARROW:
        return g / count
    return m.cast(m.cast(g, dtype=float32) / count, dtype=dtype)


def _mean_vjp(m: Any, g: Any, _y: Any, x_spec: Spec, *, dim: Dims, keepdim: bool) -> Any:
    return spread(m, shared_out(m, g, max(count_of(x_spec.shape, dim), 1), x_spec.dtype), dim, keepdim, x_spec.shape)


mean = reduction(
    "mean", onnx=rules.reduction("ReduceMean"), formula=_mean, native_from=_MEAN_FROM, vjp=_mean_vjp, kinds="f",
    empty=False, of_segments=ragged.segment_mean,
    reference=lambda x, dim, keepdim: np.mean(x, axis=dim, keepdims=keepdim),
)  # fmt: skip


# -- product ------------------------------------------------------------------------------------------------------


_multiply: Any = np.multiply.reduce


def _prod(x: Any, *, dim: Dims, keepdim: bool) -> Any:
    if x.dtype.char == "e":
        # A running product in half precision would overflow and lose digits.
        return _multiply(x, axis=dim, keepdims=keepdim, dtype=np.float32).astype(x.dtype)
    return _multiply(x, axis=dim, keepdims=keepdim, dtype=x.dtype if x.dtype.kind == "f" else np.int64)


def _prod_vjp(m: Any, g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    shape = tuple(x.shape)
    g = spread(m, g, dim, keepdim, shape)
    if not shape:  # infinity over itself is no number
        return g
    if m.works_on_arrays and np.all(x):
        return g * spread(m, y, dim, keepdim, shape) / x
    # The product of all others, from both sides: right where elements are zero, and differentiable there.
    others = tuple(d for d in range(len(shape)) if d not in dim)
    order = others + dim
    lined_up = m.permute(x, dims=order)
    flat = m.reshape(lined_up, shape=(*(shape[d] for d in others), count_of(shape, dim)))
    axis = len(others)
    before = m.shifted(m.cumprod(flat, dim=axis, reverse=False), dim=axis, by=1, fill=1.0)
    after = m.shifted(m.cumprod(flat, dim=axis, reverse=True), dim=axis, by=-1, fill=1.0)
    product = m.reshape(before * after, shape=tuple(lined_up.shape))
    return g * m.permute(product, dims=tuple(int(i) for i in np.argsort(order)))


def _prod_samples(rng: Any) -> Iterable[Sample]:
    for dim, keepdim in (((0,), False), ((1,), True), ((0, 2), False), ((0, 1, 2), False)):
        x = rng.uniform(0.5, 2.0, (3, 2, 4)) * rng.choice([-1, 1], (3, 2, 4))
        yield Sample((x,), {"dim": dim, "keepdim": keepdim})
        x = x.copy()
        x[1, 0, 2] = 0.0
        yield Sample((x,), {"dim": dim, "keepdim": keepdim})
        x = x.copy()
        x[0] = 0.0
        yield Sample((x,), {"dim": dim, "keepdim": keepdim})
    yield Sample((rng.normal(size=()),), {"dim": (), "keepdim": False})
    yield Sample((rng.normal(size=(2, 0)),), {"dim": (1,), "keepdim": False})


prod = reduction(
    "prod", autocast=FLOAT32, loop_reduction="prod",
    onnx=rules.reduction("ReduceProd", of_integers=int64), forward=_prod, vjp=_prod_vjp, dtype=sum_dtype,
    samples=_prod_samples,
    reference=lambda x, dim, keepdim: np.apply_over_axes(_product_along, x, dim).reshape(
        reduced_shape(x.shape, dim, keepdim)
    ),
)  # fmt: skip


def _product_along(x: Any, axis: int) -> Any:
    return np.apply_along_axis(lambda row: math.prod(row.tolist()), axis, x) if x.size else np.ones(
        reduced_shape(x.shape, (axis,), False)
    )


# -- variance and standard deviation ------------------------------------------------------------------------------


def moments(m: Any, x: Any, dim: Dims, lost: Any = None) -> tuple[Any, Any, Any]:
    """The mean over `dim`, what rounding lost of it, and the sum of squared deviations; the dimensions are kept.

    Far from zero a mean rounded to float32 is off by a good part of the deviations: the deviation of x is
    `(x - mean) - lost`. If x was rounded itself, `lost` says what it lost.
    """
    gap = next((k for k in range(1, len(dim)) if dim[k] != dim[k - 1] + 1), 0)
    if gap:
        # Other dimensions lie between: rows over the last ones first, then the rows' own means, so that the array is
        # visited once.
        inner = moments(m, x, dim[gap:], lost)
        return joined_moments(m, inner, dim[:gap], count_of(x.shape, dim[gap:]))
    count = count_of(x.shape, dim)
    if x.__class__ is np.ndarray:
        return _moments_of_array(x, dim, lost, count)
    mean = m.sum(x, dim=dim, keepdim=True) / count
    deviation = x - mean if lost is None else (x - mean) + lost
    total = m.sum(deviation, dim=dim, keepdim=True)
    rest = total / count
    squares = m.sum(deviation * deviation, dim=dim, keepdim=True) - total * rest
    return mean, rest, m.maximum(squares, m.zeros_like(squares))


def _moments_of_array(x: Any, dim: Dims, lost: Any, count: int) -> tuple[Any, Any, Any]:
    """The same in float64: in NumPy, wider numbers cost less than more calls."""
    wide = x.astype(np.float64, copy=False)
    if lost is not None:
        wide = wide + lost
    exact = np.add.reduce(wide, axis=dim, keepdims=True) / count
    deviation = wide - exact
    squares = np.add.reduce(deviation * deviation, axis=dim, keepdims=True)
    mean = exact.astype(x.dtype, copy=False)
    return mean, (exact - mean).astype(x.dtype, copy=False), squares.astype(x.dtype, copy=False)


def joined_moments(m: Any, parts: tuple[Any, Any, Any], dim: Dims, count: int) -> tuple[Any, Any, Any]:
    """The moments of rows of `count` numbers each, put together over `dim`."""
    means, lost, squares = parts
    mean, rest, between = moments(m, means, dim, lost)
    return mean, rest, m.sum(squares, dim=dim, keepdim=True) + between * count


def _freedom(shape: tuple[int, ...], dim: Dims, correction: float) -> Any:
    return max(count_of(shape, dim) - correction, 0)


def _var(m: Any, x: Any, *, dim: Dims, keepdim: bool, correction: float) -> Any:
    return drop(m, moments(m, x, dim)[2] / _freedom(x.shape, dim, correction), dim, keepdim)


def _var_gradient(m: Any, g: Any, x: Any, *, dim: Dims, keepdim: bool, correction: float) -> Any:
    shape = tuple(x.shape)
    freedom = count_of(shape, dim) - correction
    deviation = x - m.sum(x, dim=dim, keepdim=True) / max(count_of(shape, dim), 1)
    return spread(m, g * (2 / freedom if freedom else math.inf), dim, keepdim, shape) * deviation


_var_rule = as_rule(_var_gradient, name="var_backward")


def _var_vjp(m: Any, g: Any, _y: Any, x: Any, *, dim: Dims, keepdim: bool, correction: float) -> Any:
    return _var_rule(m, g, x, dim=dim, keepdim=keepdim, correction=correction)


def _var_reference(x: Any, dim: Dims, keepdim: bool, correction: float) -> Any:
    return np.var(x, axis=dim, keepdims=keepdim, ddof=correction)


_CORRECTIONS = ({"correction": 0}, {"correction": 1}, {"correction": 0.5})


def _var_samples(rng: Any) -> Iterable[Sample]:
    for extra in _CORRECTIONS:
        for dim, keepdim in (((0,), False), ((1,), True), ((0, 2), False), ((0, 1, 2), False)):
            yield Sample((rng.normal(size=(3, 2, 4)),), {"dim": dim, "keepdim": keepdim, **extra})
        yield Sample((rng.normal(size=(4, 6)).T[::2],), {"dim": (1,), "keepdim": False, **extra})


var = reduction(
    "var", attrs={"correction": NUMBER},
    formula=_var, work=per_input(4), vjp=_var_vjp, reference=_var_reference, samples=_var_samples, kinds="f"
)


def _std(m: Any, x: Any, *, dim: Dims, keepdim: bool, correction: float) -> Any:
    # In double precision up to the root: the deviation may fit where its square does not.
    squares = moments(m, m.cast(x, dtype=float64), dim)[2]
    root = m.cast(m.sqrt(squares / _freedom(x.shape, dim, correction)), dtype=as_dtype(x.dtype))
    return drop(m, root, dim, keepdim)


def _std_gradient(m: Any, g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool, correction: float) -> Any:
    shape = tuple(x.shape)
    freedom = count_of(shape, dim) - correction
    deviation = x - m.sum(x, dim=dim, keepdim=True) / max(count_of(shape, dim), 1)
    # Where all elements are equal the gradient is taken to be 0.
    y = spread(m, y, dim, keepdim, shape)
    flat = y == 0
    ratio = deviation / m.where(flat, m.zeros_like(y) + 1, y)
    return m.gate(ratio * spread(m, g * (1 / freedom if freedom else math.inf), dim, keepdim, shape), y)


_std_vjp = as_rule(_std_gradient, name="std_backward")


std = reduction(
    "std", attrs={"correction": NUMBER}, formula=_std, work=per_input(4), vjp=_std_vjp, samples=_var_samples, kinds="f",
    reference=lambda x, dim, keepdim, correction: np.std(x, axis=dim, keepdims=keepdim, ddof=correction),
)  # fmt: skip


# -- truth --------------------------------------------------------------------------------------------------------


def _truth_dtype(dtype: DType) -> DType:
    # PyTorch keeps uint8, from the time before it had bool.
    return uint8 if dtype is uint8 else bool_


def _truth(fold: Any) -> Any:
    def forward(x: Any, *, dim: Dims, keepdim: bool) -> Any:
        out = fold(x, axis=dim, keepdims=keepdim)
        return out.astype(np.uint8) if x.dtype == np.uint8 else out

    return forward


def _truth_samples(rng: Any) -> Iterable[Sample]:
    for dim, keepdim in (((0,), False), ((0, 1), True), ((), False), ((1,), False)):
        yield Sample((rng.integers(0, 2, (3, 2)).astype(float),), {"dim": dim, "keepdim": keepdim}, smooth=False)
        yield Sample((rng.integers(0, 2, (3, 0)) > 0,), {"dim": dim, "keepdim": keepdim}, smooth=False)
    yield Sample((rng.integers(0, 2, (3, 2)).astype(np.uint8),), {"dim": (0,), "keepdim": False}, smooth=False)


_truths = partial(reduction, vjp=None, dtype=_truth_dtype, samples=_truth_samples)
any_ = _truths(
    "any", loop_reduction="any", onnx=rules.truth(every=False), forward=_truth(np.any),
    reference=lambda x, dim, keepdim: (x != 0).sum(axis=dim, keepdims=keepdim) > 0,
)  # fmt: skip
all_ = _truths(
    "all", loop_reduction="all", onnx=rules.truth(every=True), forward=_truth(np.all),
    reference=lambda x, dim, keepdim: (x == 0).sum(axis=dim, keepdims=keepdim) == 0,
)  # fmt: skip
