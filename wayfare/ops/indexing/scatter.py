"""Gather and scatter: one index for every element along one dimension, and look-ups of whole rows.

`index` has as many dimensions as `x` and may be smaller in those other than `dim`; sources have its shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.routines import indexed
from wayfare.codegen.routines.rows import Part, Rows, add_at
from wayfare.core import buffer_pool
from wayfare.core.autocast import WIDEST_ON_CUDA
from wayfare.core.errors import OperationError, ShapeError
from wayfare.core.flops import per_input
from wayfare.core.mode import STATE
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, checks_values
from wayfare.core.signature import DIM, SIZES, takes
from wayfare.core.spec import Shape, Spec
from wayfare.ops._define import define, in_front
from wayfare.ops.indexing import onnx_rules as rules
from wayfare.ops.indexing.advanced import check_bounds, numbered


@lru_cache(maxsize=256)
def _mesh(shape: Shape, dim: int) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Open ranges over the dimensions before and behind `dim`."""
    ranges = [np.arange(n).reshape((n,) + (1,) * (len(shape) - d - 1)) for d, n in enumerate(shape)]
    return tuple(ranges[:dim]), tuple(ranges[dim + 1 :])


def _along(index: Array, dim: int) -> tuple[Array, ...]:
    """NumPy's index for "the element `index` along `dim`, all other coordinates the index's own"."""
    before, behind = _mesh(index.shape, dim)
    return (*before, index, *behind)


def _check(op: str, x: Spec, index: Spec, dim: int, src: Spec | None = None) -> None:
    if index.ndim != x.ndim:
        raise ShapeError(f"{op}: index {index} must have the same number of dimensions as the tensor {x}",
                         fix="Add dimensions with .unsqueeze(...).")  # fmt: skip
    if any(i > n for d, (i, n) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        raise ShapeError(f"{op}: index {index} is larger than the tensor {x} in a dimension other than dim {dim}")
    if src is not None and src.shape != index.shape:
        raise ShapeError(f"{op}: a source of {src} does not fit an index of {index}")


def _within(op: str, index: Array, size: int, dim: int) -> None:
    check_bounds(op, index, size, dim, error=OperationError)


# -- gather ----------------------------------------------------------------------------------------------------


@checks_values
def _gather(x: Array, index: Array, *, dim: int) -> Array:
    _check_arrays("gather", x, index, dim)
    out = indexed.gather_along(x, index, dim) if index.size >= indexed.ADD_FROM else None
    return x[_along(index, dim)] if out is None else out


def _check_arrays(op: str, x: Array, index: Array, dim: int) -> None:
    if index.ndim != x.ndim:
        raise ValueError("ranks differ")
    _within(op, index, x.shape[dim], dim)


def _gather_infer(x: Spec, index: Spec, *, dim: int) -> Spec:
    _check("gather", x, index, dim)
    return Spec(index.shape, x.dtype)


def _pairs(index: Array, dim: int) -> Iterable[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(place in the index, place in the tensor) of every element, for the references."""
    for at in np.ndindex(*index.shape):
        yield at, (*at[:dim], int(index[at]), *at[dim + 1 :])


def _gather_reference(x: Array, index: Array, dim: int) -> Array:
    return np.array([x[there] for _, there in _pairs(index, dim)], x.dtype).reshape(index.shape)


def _gather_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(3, 4)), rng.integers(0, 4, (3, 2))), {"dim": 1})
    yield Sample((rng.normal(size=(3, 4)).T, np.array([[1, 1, 0], [3, 3, 3]])), {"dim": 0})
    yield Sample((rng.normal(size=(2, 3, 2)), rng.integers(0, 3, (1, 4, 2))), {"dim": 1})
    yield Sample((rng.normal(size=(3,)), np.zeros(0, np.int64)), {"dim": 0})


gather = define(
    "gather",
    workspace=1,
    signature=takes(2, dim=DIM),
    onnx=rules.gather,
    family="indexing",
    forward=_gather,
    infer=_gather_infer,
    vjp=(
        lambda m, g, _y, x_spec, index, *, dim: m.scatter_place(g, index, shape=x_spec.shape, dim=dim),
        None,
    ),
    batch=in_front("gather"),
    reference=_gather_reference,
    samples=_gather_samples,
)


def _scatter_place(g: Array, index: Array, *, shape: Shape, dim: int) -> Array:
    out = np.zeros(shape, g.dtype)
    add_along(out, index, g, dim)
    return out


def add_along(out: Array, index: Array, values: Array, dim: int) -> None:
    """Add in place; the index was checked."""
    if index.size < indexed.ADD_FROM or not indexed.add_along(out, index, values, dim):
        add_at(out, _along(index, dim), values)


def _scatter_place_as_rows(g: Array, index: Array, *, shape: Shape, dim: int) -> Rows:
    # One index along the dimension cannot meet another, so nothing has to be summed.
    return Rows(shape, g.dtype, [Part(_along(index, dim), g, index.shape[dim] == 1)])


def _scatter_place_reference(g: Array, index: Array, shape: Shape, dim: int) -> Array:
    out = np.zeros(shape, g.dtype)
    for at, there in _pairs(index, dim):
        out[there] += g[at]
    return out


# Zeros with values added at an index: the adjoint of `gather`.
scatter_place = define(
    "scatter_place",
    signature=takes(2, shape=SIZES, dim=DIM),
    onnx=rules.scatter_place,
    family="indexing",
    forward=_scatter_place,
    infer=lambda g, index, *, shape, dim: Spec(shape, g.dtype),
    vjp=(lambda m, g, _y, _g, index, *, shape, dim: m.gather(g, index, dim=dim), None),
    batch=in_front("scatter_place"),
    reference=_scatter_place_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(3, 2)), np.array([[1, 1], [0, 3], [2, 2]])), {"shape": (3, 4), "dim": 1}),
        Sample((rng.normal(size=(1, 2)), np.array([[1, 0]])), {"shape": (3, 2), "dim": 0}),
    ],
    sparse=_scatter_place_as_rows,
)


# -- scatter ---------------------------------------------------------------------------------------------------


@checks_values
def _scatter_add(x: Array, index: Array, src: Array, *, dim: int) -> Array:
    _check_arrays("scatter_add", x, index, dim)
    out = buffer_pool.empty(x.shape, x.dtype)
    np.copyto(out, x)
    add_along(out, index, src, dim)
    return out


def _scatter_infer(op: str) -> Any:
    def infer(x: Spec, index: Spec, src: Spec, *, dim: int, **_attrs: Any) -> Spec:
        _check(op, x, index, dim, src)
        return x

    return infer


def _scatter_add_reference(x: Array, index: Array, src: Array, dim: int) -> Array:
    out = x.copy()
    for at, there in _pairs(index, dim):
        out[there] += src[at]
    return out


def _scatter_samples(repeats: bool) -> Any:
    def samples(rng: Any) -> Iterable[Sample]:
        yield Sample((rng.normal(size=(3, 4)), np.array([[1, 3], [0, 2], [3, 1]]), rng.normal(size=(3, 2))), {"dim": 1})
        yield Sample((rng.normal(size=(2, 4)).T, np.array([[2, 0]]), rng.normal(size=(1, 2))), {"dim": 0})
        yield Sample((rng.normal(size=(3,)), np.zeros(0, np.int64), np.zeros(0)), {"dim": 0})
        if repeats:
            yield Sample((rng.normal(size=(3, 2)), np.array([[1, 1], [1, 0]]), rng.normal(size=(2, 2))), {"dim": 0})

    return samples


scatter_add = define(
    "scatter_add", autocast=WIDEST_ON_CUDA,
    signature=takes(3, dim=DIM),
    onnx=rules.scatter("add"),
    family="indexing",
    work=per_input(which=2),
    forward=_scatter_add,
    infer=_scatter_infer("scatter_add"),
    vjp=(
        lambda m, g, _y, _x, _index, _src, *, dim: g,
        None,
        lambda m, g, _y, _x, index, _src, *, dim: m.gather(g, index, dim=dim),
    ),
    batch=in_front("scatter_add"),
    reference=_scatter_add_reference,
    samples=_scatter_samples(repeats=True),
)


@checks_values
def _scatter(x: Array, index: Array, src: Array, *, dim: int) -> Array:
    _check_arrays("scatter", x, index, dim)
    out = x.copy(order="C")
    out[_along(index, dim)] = src
    return out


def _scatter_reference(x: Array, index: Array, src: Array, dim: int) -> Array:
    out = x.copy()
    for at, there in _pairs(index, dim):
        out[there] = src[at]
    return out


def _hole(m: Any, g: Any, index: Any, dim: int) -> Any:
    """The gradient without the places that were overwritten."""
    zeros = np.zeros(tuple(index.shape), getattr(g.dtype, "numpy", g.dtype))
    return m.scatter(g, index, zeros, dim=dim)


def _by_source(m: Any, g: Any, _y: Any, _x: Any, index: Any, _src: Any, *, dim: int) -> Any:
    """As in PyTorch each source has the gradient of its place, even one that was overwritten."""
    found = m.gather(g, index, dim=dim)
    if not STATE.exact:
        return found
    numbers = numbered(tuple(index.shape))
    last = m.scatter(np.zeros(tuple(g.shape), np.int64), index, numbers, dim=dim)
    return m.gate(found, m.eq(m.gather(last, index, dim=dim), numbers))


scatter = define(
    "scatter",
    signature=takes(3, dim=DIM),
    onnx=rules.scatter("none"),
    family="indexing",
    forward=_scatter,
    infer=_scatter_infer("scatter"),
    vjp=(
        lambda m, g, _y, _x, index, _src, *, dim: _hole(m, g, index, dim),
        None,
        _by_source,
    ),
    batch=in_front("scatter"),
    reference=_scatter_reference,
    samples=_scatter_samples(repeats=False),
)


# -- scatter with a product or an extreme ----------------------------------------------------------------------


def _folded(op: str, ufunc: Any, x: Array, index: Array, src: Array, dim: int) -> Array:
    _check_arrays(op, x, index, dim)
    out = x.copy(order="C")
    ufunc.at(out, _along(index, dim), src)
    return out


def _folded_reference(fold: Any, x: Array, index: Array, src: Array, dim: int) -> Array:
    out = x.copy()
    for at, there in _pairs(index, dim):
        out[there] = fold(out[there], src[at])
    return out


def _extreme_share(m: Any, g: Any, y: Any, x: Any, index: Any, src: Any, dim: int) -> tuple[Any, Any]:
    """The gradient of the tensor and of the sources: those that equal the extreme share it. A NaN equals none, so then
    it is NaN for all, as with `amax`."""
    x_is_it, src_is_it = x == y, src == m.gather(y, index, dim=dim)
    ones = m.gate(m.zeros_like(src) + 1, src_is_it)
    count = m.scatter_add(m.gate(m.zeros_like(x) + 1, x_is_it), index, ones, dim=dim)
    share, rest = g / count, m.zeros_like(count) / count
    return (m.where(x_is_it, share, rest),
            m.where(src_is_it, m.gather(share, index, dim=dim), m.gather(rest, index, dim=dim)))  # fmt: skip


def _extreme(name: str, ufunc: Any, fold: Any) -> None:
    define(
        name,
        signature=takes(3, dim=DIM),
        onnx=rules.scatter("max" if name == "scatter_amax" else "min"),
        family="indexing",
        work=per_input(which=2),
        forward=checks_values(lambda x, index, src, *, dim: _folded(name, ufunc, x, index, src, dim)),
        infer=_scatter_infer(name),
        vjp=(
            lambda m, g, y, x, index, src, *, dim: _extreme_share(m, g, y, x, index, src, dim)[0],
            None,
            lambda m, g, y, x, index, src, *, dim: _extreme_share(m, g, y, x, index, src, dim)[1],
        ),
        batch=in_front(name),
        reference=lambda x, index, src, dim: _folded_reference(fold, x, index, src, dim),
        samples=_scatter_samples(repeats=True),
        grad_name="ScatterReduceBackward0",
    )


_extreme("scatter_amax", np.maximum, max)
_extreme("scatter_amin", np.minimum, min)


def _filled(m: Any, x: Any, where: Any) -> Any:
    """`x` with ones at the given places."""
    return m.where(where, m.zeros_like(x) + 1, x)


def _prod_by_x(m: Any, g: Any, _y: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    # The product of the sources. Dividing the result by x would fail where x is zero.
    ones = m.zeros_like(x) + 1
    return g * m.scatter_prod(ones, index, src, dim=dim)


def _prod_by_src(m: Any, g: Any, y: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    zero = src == 0
    zeros = m.scatter_add(m.zeros_like(x), index, m.where(zero, m.zeros_like(src) + 1, m.zeros_like(src)), dim=dim)
    # Without its zeros the product can be divided; a factor has no gradient when another one is zero.
    others = m.scatter_prod(x, index, _filled(m, src, zero), dim=dim)
    mine = m.where(zero, m.zeros_like(src) + 1, m.zeros_like(src))
    alive = m.gather(zeros, index, dim=dim) == mine
    gradient = m.gather(g * others, index, dim=dim) / _filled(m, src, zero)
    return m.where(alive, gradient, m.zeros_like(gradient))


scatter_prod = define(
    "scatter_prod",
    signature=takes(3, dim=DIM),
    onnx=rules.scatter("mul"),
    family="indexing",
    work=per_input(which=2),
    forward=checks_values(lambda x, index, src, *, dim: _folded("scatter_prod", np.multiply, x, index, src, dim)),
    infer=_scatter_infer("scatter_prod"),
    vjp=(_prod_by_x, None, _prod_by_src),
    batch=in_front("scatter_prod"),
    reference=lambda x, index, src, dim: _folded_reference(lambda a, b: a * b, x, index, src, dim),
    samples=_scatter_samples(repeats=True),
    grad_name="ScatterReduceBackward0",
)
