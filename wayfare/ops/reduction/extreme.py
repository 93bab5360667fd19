"""Largest and smallest: their values, and where they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.codegen.routines.short_reductions import max_along, min_along
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op, Sample, raw_ops
from wayfare.core.signature import DIM, FLAG, takes
from wayfare.core.spec import Spec, int64
from wayfare.ir.fuse.composite import as_rule
from wayfare.ops._define import define, in_front, reduced_shape, reduction, spread
from wayfare.ops.reduction import onnx_rules as rules
from wayfare.ops.reduction.reduce import Dims, like

# -- values only --------------------------------------------------------------------------------------------------


def _extreme_gradient(m: Any, g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    """Equal extremes share the gradient evenly; there is none if the extreme is NaN."""
    shape = tuple(x.shape)
    at = x == spread(m, y, dim, keepdim, shape)
    count = m.sum(like(m, at, g), dim=dim, keepdim=True)
    # `where`, not a product with 0 and 1: an infinite gradient would turn the others into NaN.
    rest = m.zeros_like(count) / count
    return m.where(at, spread(m, g, dim, keepdim, shape) / count, m.expand(rest, shape=shape))


_extreme_vjp = as_rule(_extreme_gradient, name="amax_backward")


def _extreme(name: str, which: str, vjp: Any, grad_name: str = "") -> Op:
    along, find = (max_along, np.max) if which == "max" else (min_along, np.min)
    return reduction(
        name, loop_reduction=which, fusible_gradient=True, onnx=rules.reduction(f"Reduce{which.capitalize()}"),
        forward=lambda x, *, dim, keepdim: along(x, dim, keepdim), vjp=vjp, empty=False, grad_name=grad_name,
        reference=lambda x, dim, keepdim: find(x, axis=dim, keepdims=keepdim),
    )  # fmt: skip


amax = _extreme("amax", "max", _extreme_vjp)
amin = _extreme("amin", "min", _extreme_vjp)


# -- of all elements: if the extreme is NaN, the gradient goes to the NaNs ------------------------------------------


def _sharing_gradient(m: Any, g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool, **_attrs: Any) -> Any:
    shape = tuple(x.shape)
    y = spread(m, y, dim, keepdim, shape)
    at = m.logical_or(x == y, m.logical_and(x != x, y != y))
    return m.gate(spread(m, g, dim, keepdim, shape) / m.sum(like(m, at, g), dim=dim, keepdim=True), at)


# The rule of an op that gives one of its elements: all that equal it share the gradient evenly, NaN as well.
sharing_vjp = as_rule(_sharing_gradient, name="max_of_all_backward")


# In PyTorch the gradient of `max()` goes to NaNs and that of `amax` does not: two records with the same values.
max_of_all = _extreme("max_of_all", "max", sharing_vjp, "MaxBackward1")
min_of_all = _extreme("min_of_all", "min", sharing_vjp, "MinBackward1")


# -- where they are: the first of equals; NaN counts as extreme ---------------------------------------------------


def _place(find: Any) -> Any:
    def forward(x: Array, *, dim: Dims, keepdim: bool) -> Any:
        if not dim:
            return np.zeros(x.shape, np.int64)
        return find(x, axis=dim[0], keepdims=keepdim)

    return forward


def _place_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(3, 4)),), {"dim": (0,), "keepdim": False}, smooth=False)
    yield Sample((rng.integers(0, 3, (3, 2, 5)),), {"dim": (2,), "keepdim": True}, smooth=False)
    yield Sample((rng.normal(size=(4, 6)).T,), {"dim": (1,), "keepdim": False}, smooth=False)
    yield Sample((np.array([1.0, np.nan, 3.0, np.nan]),), {"dim": (0,), "keepdim": False}, smooth=False)
    yield Sample((rng.normal(size=()),), {"dim": (), "keepdim": False}, smooth=False)


def _place_reference(sign: int) -> Any:
    def one(row: Array) -> int:
        values = row.tolist()
        return max(range(len(values)), key=lambda i: (values[i] != values[i], sign * values[i], -i))

    def reference(x: Array, dim: Dims, keepdim: bool) -> Any:
        if not dim:
            return np.zeros(x.shape, np.int64)
        return np.apply_along_axis(one, dim[0], x).reshape(reduced_shape(x.shape, dim, keepdim))

    return reference


for _name, _find, _sign in (("argmax", np.argmax, 1), ("argmin", np.argmin, -1)):
    reduction(
        _name, loop_reduction=_name, onnx=rules.target_of(largest=_sign > 0), forward=_place(_find), vjp=None,
        dtype=lambda dtype: int64, samples=_place_samples, reference=_place_reference(_sign), empty=False,
    )  # fmt: skip


# -- max and min along one dimension: values and indices ----------------------------------------------------------


def take_along(x: Array, index: Array, axis: int) -> Any:
    """The elements that `index` (of the same rank) names along one axis."""
    if axis == x.ndim - 1 and x.flags.c_contiguous and index.shape[:-1] == x.shape[:-1]:
        starts = np.arange(0, x.size, x.shape[-1]).reshape((*x.shape[:-1], 1)) if x.size else 0
        return x.reshape(-1)[index + starts]
    return np.take_along_axis(x, index, axis)


def scatter_back(m: Any, g: Any, index: Any, x_spec: Spec, dim: int, keepdim: bool = True) -> Any:
    """The adjoint of picking elements along `dim`: each gradient goes to where its value came from."""
    if not keepdim:
        shape = reduced_shape(x_spec.shape, (dim,), True)
        g, index = m.reshape(g, shape=shape), m.reshape(index, shape=shape)
    return m.scatter_place(g, index, shape=x_spec.shape, dim=dim)


def _extreme_at(name: str, find: str, reference: Any, grad_name: str) -> Op:
    def forward(x: Array, *, dim: int, keepdim: bool) -> tuple[Any, Any]:
        index = getattr(raw_ops, find)(x, dim=(dim,), keepdim=True)
        values = take_along(x, index, dim)
        if not keepdim:
            shape = reduced_shape(x.shape, (dim,), False)
            return values.reshape(shape), index.reshape(shape)
        return values, index

    def infer(x: Spec, *, dim: int, keepdim: bool) -> tuple[Spec, Spec]:
        shape = reduced_shape(x.shape, (dim,), keepdim)
        return Spec(shape, x.dtype), Spec(shape, int64)

    def vjp(m: Any, g: Any, y: Any, x_spec: Spec, *, dim: int, keepdim: bool) -> Any:
        return scatter_back(m, g[0], y[1], x_spec, dim, keepdim)

    def samples(rng: Any) -> Iterable[Sample]:
        yield Sample((rng.normal(size=(3, 4)),), {"dim": 0, "keepdim": False})
        yield Sample((rng.normal(size=(3, 2, 5)),), {"dim": 2, "keepdim": True})
        yield Sample((rng.normal(size=(4, 6)).T,), {"dim": 1, "keepdim": False})
        yield Sample((rng.integers(0, 3, (3, 5)),), {"dim": 1, "keepdim": False}, smooth=False)

    def by_place(x: Array, dim: int, keepdim: bool) -> Any:
        index = reference(x, (dim,), keepdim)
        values = np.max(x, axis=dim, keepdims=keepdim) if name == "max_at" else np.min(x, axis=dim, keepdims=keepdim)
        return values, index

    return define(
        name, signature=takes(1, dim=DIM, keepdim=FLAG), family="reduction", forward=forward, infer=infer, vjp=(vjp,),
        batch=in_front(name), samples=samples, reference=by_place, outputs=2, differentiable_outputs=(0,),
        kept_outputs=(1,), takes_none=True, grad_name=grad_name, onnx=rules.extreme_at(name == "max_at"),
    )  # fmt: skip


max_at = _extreme_at("max_at", "argmax", _place_reference(1), "MaxBackward0")
min_at = _extreme_at("min_at", "argmin", _place_reference(-1), "MinBackward0")
