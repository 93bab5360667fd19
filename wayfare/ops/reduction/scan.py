"""Scans: running sums, products and extremes along one dimension."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from wayfare.codegen.routines import scans
from wayfare.core.autocast import FLOAT32_ON_CUDA
from wayfare.core.flops import per_output
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op, Sample
from wayfare.core.signature import DIM, FLAG, INT, NUMBER, takes
from wayfare.core.spec import Spec, int64
from wayfare.ops._define import Samples, define, in_front, shaped_alike
from wayfare.ops.movement import onnx_rules as movement_rules
from wayfare.ops.reduction import onnx_rules as rules
from wayfare.ops.reduction.extreme import scatter_back, take_along
from wayfare.ops.reduction.reduce import sum_dtype


def _samples(
    *, extra: tuple[dict[str, Any], ...] = ({},), low: float = -2.0, high: float = 2.0, zeros: bool = False
) -> Samples:
    def samples(rng: Any) -> Iterable[Sample]:
        for attrs in extra:
            yield Sample((rng.uniform(low, high, (2, 3, 2)),), {"dim": 1, **attrs})
            yield Sample((rng.uniform(low, high, (4, 6)).T[::2],), {"dim": 0, **attrs})
            yield Sample((rng.uniform(low, high, (5,)),), {"dim": 0, **attrs})
            yield Sample((rng.uniform(low, high, (2, 0)),), {"dim": 1, **attrs})
            if zeros:
                x = rng.uniform(low, high, (5, 2))
                x[1, 0] = x[3, 0] = x[0, 1] = 0.0
                yield Sample((x,), {"dim": 0, **attrs})

    return samples


_BOTH_WAYS = ({"reverse": False}, {"reverse": True})


def _running(fold: Callable[[Any, Any], Any]) -> Any:
    """The reference of a scan: Python's accumulate on every row."""

    def reference(x: Array, dim: int, reverse: bool = False) -> Array:
        def one(row: Array) -> Any:
            values = row.tolist()[:: -1 if reverse else 1]
            return list(itertools.accumulate(values, fold))[:: -1 if reverse else 1]

        return np.apply_along_axis(one, dim, x) if x.size else x

    return reference


# -- cumsum, cumprod ----------------------------------------------------------------------------------------------


# The dtype that a scan computes in: in float32 errors would add up from element to element.
_CARRIED: dict[str, np.dtype[Any]] = {"e": np.dtype(np.float32), "f": np.dtype(np.float64), "d": np.dtype(np.float64)}
_WHOLE: np.dtype[Any] = np.dtype(np.int64)


def _accumulate(of_two: np.ufunc, native: str) -> Any:
    def forward(x: Array, *, dim: int, reverse: bool) -> Array:
        if x.size >= scans.NATIVE_FROM:
            found = scans.running(native, x, dim, reverse)
            if found is not None:
                return found
        wide = x.astype(_CARRIED.get(x.dtype.char, _WHOLE), copy=False)
        if not reverse:
            out = of_two.accumulate(wide, axis=dim)
        else:
            out = np.flip(of_two.accumulate(np.flip(wide, dim), axis=dim), dim)
        return out.astype(x.dtype, copy=False) if x.dtype.kind == "f" else out

    return forward


def _same_shape(x: Spec, *, dim: int, reverse: bool) -> Spec:
    return Spec(x.shape, sum_dtype(x.dtype))


def _cumsum_vjp(m: Any, g: Any, _y: Any, _x: Any, *, dim: int, reverse: bool) -> Any:
    return m.cumsum(g, dim=dim, reverse=not reverse)


cumsum = define(
    "cumsum", autocast=FLOAT32_ON_CUDA, signature=takes(1, reverse=FLAG, dim=DIM),
    onnx=rules.cumsum, family="scan", forward=_accumulate(np.add, "add"), infer=_same_shape, vjp=(_cumsum_vjp,),
    batch=in_front("cumsum"), samples=_samples(extra=_BOTH_WAYS), reference=_running(operator.add),
)  # fmt: skip


def _cumprod_vjp(m: Any, g: Any, y: Any, x: Any, *, dim: int, reverse: bool) -> Any:
    if x.shape[dim] == 1:  # infinity over itself is no number
        return g
    if m.works_on_arrays and np.all(x):
        return m.cumsum(g * y, dim=dim, reverse=not reverse) / x
    # The product of all before, times the sum over all after of g times the product in between: right at zeros.
    step = -1 if reverse else 1
    before = m.shifted(y, dim=dim, by=step, fill=1.0)
    following = m.shifted(x, dim=dim, by=-step, fill=0.0)
    return before * m.linear_scan(following, g, dim=dim, reverse=not reverse)


cumprod = define(
    "cumprod", autocast=FLOAT32_ON_CUDA, signature=takes(1, reverse=FLAG, dim=DIM),
    onnx=rules.cumprod, family="scan", forward=_accumulate(np.multiply, "mul"), infer=_same_shape,
    vjp=(_cumprod_vjp,),
    batch=in_front("cumprod"), samples=_samples(extra=_BOTH_WAYS, low=0.5, zeros=True),
    reference=_running(operator.mul),
)  # fmt: skip


# -- the two helpers that make their gradients exact --------------------------------------------------------------


def _shifted(x: Array, *, dim: int, by: int, fill: float) -> Array:
    out = np.empty_like(x, order="C", subok=False)
    size = x.shape[dim]
    ahead = (slice(None),) * dim
    edge = min(abs(by), size)
    if by >= 0:
        out[(*ahead, slice(edge, None))] = x[(*ahead, slice(0, size - edge))]
        out[(*ahead, slice(0, edge))] = fill
    else:
        out[(*ahead, slice(0, size - edge))] = x[(*ahead, slice(edge, None))]
        out[(*ahead, slice(size - edge, None))] = fill
    return out


def _shifted_reference(x: Array, dim: int, by: int, fill: float) -> Array:
    def one(row: Array) -> list[float]:
        return [row[i - by] if 0 <= i - by < len(row) else fill for i in range(len(row))]

    return np.apply_along_axis(one, dim, x) if x.size else x


# y[i] = x[i - by]; what comes in at the end is `fill`.
shifted = define(
    "shifted",
    signature=takes(1, fill=NUMBER, dim=DIM, by=INT),
    onnx=movement_rules.shifted,
    family="movement",
    forward=_shifted,
    infer=lambda x, *, dim, by, fill: x,
    vjp=(lambda m, g, _y, _x, *, dim, by, fill: m.shifted(g, dim=dim, by=-by, fill=0.0),),
    batch=in_front("shifted"),
    samples=_samples(extra=({"by": 1, "fill": 0.0}, {"by": -2, "fill": 1.0}, {"by": 9, "fill": 0.0})),
    reference=_shifted_reference,
)


def _linear_scan(a: Array, b: Array, *, dim: int, reverse: bool) -> Array:
    found = scans.linear(a, b, dim, reverse)
    if found is not None:
        return found
    wide = _CARRIED[b.dtype.char]
    out = np.array(b, wide, order="C")
    rows, factors = np.moveaxis(out, dim, 0), np.moveaxis(a.astype(wide, copy=False), dim, 0)
    if reverse:
        rows, factors = rows[::-1], factors[::-1]
    for i in range(1, len(rows)):
        rows[i] += factors[i] * rows[i - 1]
    return out.astype(b.dtype, copy=False)


def _scan_by_b(m: Any, g: Any, _y: Any, a: Any, _b: Any, *, dim: int, reverse: bool) -> Any:
    following = m.shifted(a, dim=dim, by=1 if reverse else -1, fill=0.0)
    return m.linear_scan(following, g, dim=dim, reverse=not reverse)


def _scan_by_a(m: Any, g: Any, y: Any, a: Any, _b: Any, *, dim: int, reverse: bool) -> Any:
    before = m.shifted(y, dim=dim, by=-1 if reverse else 1, fill=0.0)
    return before * _scan_by_b(m, g, None, a, None, dim=dim, reverse=reverse)


def _linear_scan_reference(a: Array, b: Array, dim: int, reverse: bool) -> Array:
    """Unrolled: y[i] is the sum of b[j] times all a between."""
    a, b = np.moveaxis(a, dim, -1), np.moveaxis(b, dim, -1)
    if reverse:
        a, b = a[..., ::-1], b[..., ::-1]
    out = np.zeros(b.shape)
    for i in range(b.shape[-1]):
        for j in range(i + 1):
            out[..., i] += b[..., j] * np.prod(a[..., j + 1 : i + 1], axis=-1)
    return np.moveaxis(out[..., ::-1] if reverse else out, -1, dim)


def _linear_scan_samples(rng: Any) -> Iterable[Sample]:
    for attrs in _BOTH_WAYS:
        yield Sample((rng.normal(size=(2, 4)), rng.normal(size=(2, 4))), {"dim": 1, **attrs})
        yield Sample((rng.normal(size=(3, 2)), rng.normal(size=(3, 2))), {"dim": 0, **attrs})


# y[i] = b[i] + a[i] y[i - 1], or with `reverse` b[i] + a[i] y[i + 1]; the first factor has nothing to act on.
linear_scan = define(
    "linear_scan",
    signature=takes(2, reverse=FLAG, dim=DIM),
    onnx=rules.linear_scan,
    family="scan",
    work=per_output(2),
    forward=_linear_scan,
    infer=shaped_alike("linear_scan", 1),
    vjp=(_scan_by_a, _scan_by_b),
    batch=in_front("linear_scan"),
    samples=_linear_scan_samples,
    reference=_linear_scan_reference,
)


# -- logcumsumexp -------------------------------------------------------------------------------------------------


def _logcumsumexp(x: Array, *, dim: int) -> Array:
    wide = x.astype(_CARRIED[x.dtype.char], copy=False)
    return np.logaddexp.accumulate(wide, axis=dim).astype(x.dtype, copy=False)


def _difference(m: Any, a: Any, b: Any) -> Any:
    """a - b, and 0 for equal infinities."""
    return m.where(a == b, m.zeros_like(a), a - b)


def _logcumsumexp_vjp(m: Any, g: Any, y: Any, x: Any, *, dim: int) -> Any:
    # sum over k >= j of g[k] exp(x[j] - y[k]), from the end backwards: no exponent is ever positive.
    decay = m.exp(_difference(m, y, m.shifted(y, dim=dim, by=-1, fill=math.inf)))
    return m.exp(_difference(m, x, y)) * m.linear_scan(decay, g, dim=dim, reverse=True)


logcumsumexp = define(
    "logcumsumexp", workspace=3, signature=takes(1, dim=DIM),
    onnx=rules.logcumsumexp, family="scan", work=per_output(4), forward=_logcumsumexp,
    infer=lambda x, *, dim: x, vjp=(_logcumsumexp_vjp,), batch=in_front("logcumsumexp"), samples=_samples(),
    kinds="f",
    reference=lambda x, dim: np.log(np.cumsum(np.exp(x), axis=dim)),
)  # fmt: skip


# -- cummax, cummin -----------------------------------------------------------------------------------------------


def _running_extreme(name: str, of_two: np.ufunc, better: Callable[[Any, Any], bool]) -> Op:
    def forward(x: Array, *, dim: int) -> tuple[Array, Array]:
        values = of_two.accumulate(x, axis=dim)
        shape = [1] * x.ndim
        shape[dim] = x.shape[dim]
        here = np.arange(x.shape[dim]).reshape(shape)
        found = x == values
        if x.dtype.kind == "f":
            found |= np.isnan(x)
        # The last of equals counts, as in PyTorch.
        index = np.maximum.accumulate(np.where(found, here, 0), axis=dim)
        return values, index

    def infer(x: Spec, *, dim: int) -> tuple[Spec, Spec]:
        return x, Spec(x.shape, int64)

    def vjp(m: Any, g: Any, y: Any, x_spec: Spec, *, dim: int) -> Any:
        return scatter_back(m, g[0], y[1], x_spec, dim)

    def reference(x: Array, dim: int) -> tuple[Array, Array]:
        def one(row: Array) -> list[int]:
            best = [0]
            for i in range(1, len(row)):
                best.append(i if better(row[i], row[best[-1]]) else best[-1])
            return best

        index = np.apply_along_axis(one, dim, x) if x.size else np.zeros(x.shape, np.int64)
        return take_along(x, index, dim), index

    def samples(rng: Any) -> Iterable[Sample]:
        yield from _samples()(rng)
        yield Sample((rng.integers(0, 3, (7,)),), {"dim": 0}, smooth=False)

    return define(
        name, signature=takes(1, dim=DIM), family="scan", forward=forward, infer=infer, vjp=(vjp,),
        batch=in_front(name), samples=samples, reference=reference, outputs=2, differentiable_outputs=(0,),
        kept_outputs=(1,), takes_none=True,
        onnx=rules.running_extreme("Max" if name == "cummax" else "Min"),
    )  # fmt: skip


cummax = _running_extreme("cummax", np.maximum, operator.ge)
cummin = _running_extreme("cummin", np.minimum, operator.le)
