"""Weighted sums of elements along one dimension: the building block of separable image resizing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.codegen.runtime.gemm import matmul
from wayfare.core.errors import ShapeError
from wayfare.core.flops import weighted_places
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import COUNT, DIM, takes
from wayfare.core.spec import Spec
from wayfare.ops._define import by_loop, define
from wayfare.ops.window import onnx_rules as rules


def _resample(x: Array, places: Array, weights: Array, *, dim: int) -> Array:
    """Place `o` of the result is the sum over `t` of `weights[t, o] * x[places[t, o]]` along `dim`."""
    column = (-1,) + (1,) * (x.ndim - dim - 1)
    total: Any = None
    for at, weight in zip(places, weights, strict=True):
        part = x.take(at, axis=dim)
        part *= weight.reshape(column)
        total = part if total is None else np.add(total, part, out=total)
    return total  # type: ignore[no-any-return]


def _matrix(places: Array, weights: Array, size: int) -> Array:
    """The same map as a matrix (places of the result, places of the input)."""
    out = np.zeros((places.shape[1], size), weights.dtype)
    for at, weight in zip(places, weights, strict=True):
        out[np.arange(places.shape[1]), at] += weight
    return out


def _resample_back(g: Array, places: Array, weights: Array, *, dim: int, size: int) -> Array:
    """The adjoint, as a product of matrices: sums over repeated places one by one would be slower."""
    matrix = _matrix(places, weights, size)
    if g.dtype == np.float16:
        return _resample_back(g.astype(np.float32), places, weights.astype(np.float32), dim=dim, size=size).astype(
            np.float16
        )
    if dim == g.ndim - 1:
        return np.asarray(matmul(g, matrix))
    inner = int(np.prod(g.shape[dim + 1 :]))
    outer = int(np.prod(g.shape[:dim]))
    made = matmul(matrix.T, g.reshape(outer, g.shape[dim], inner))
    return made.reshape(*g.shape[:dim], size, *g.shape[dim + 1 :])


def _infer(x: Spec, places: Spec, weights: Spec, *, dim: int) -> Spec:
    if places.ndim != 2 or places.shape != weights.shape or not places.shape[0]:
        raise ShapeError(f"resample: needs one weight for each place, not {weights} and {places}")
    return Spec((*x.shape[:dim], places.shape[1], *x.shape[dim + 1 :]), x.dtype)


def _back_infer(g: Spec, places: Spec, weights: Spec, *, dim: int, size: int) -> Spec:
    if places.ndim != 2 or places.shape != weights.shape or places.shape[1] != g.shape[dim]:
        raise ShapeError(f"resample: places {places} and weights {weights} do not fit a gradient {g}")
    return Spec((*g.shape[:dim], size, *g.shape[dim + 1 :]), g.dtype)


def _one_further(name: str) -> Any:
    def batch(m: Any, size: int, inputs: Any, batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        if batched[1] or batched[2]:
            return by_loop(name)(m, size, inputs, batched, attrs)
        return getattr(m, name)(*inputs, **attrs | {"dim": attrs["dim"] + 1})

    return batch


def _reference(x: Array, places: Array, weights: Array, dim: int) -> Array:
    return np.moveaxis(np.tensordot(_matrix(places, weights, x.shape[dim]), x, axes=(1, dim)), 0, dim)


def _back_reference(g: Array, places: Array, weights: Array, dim: int, size: int) -> Array:
    moved = np.moveaxis(g, dim, 0)
    out = np.zeros((size, *moved.shape[1:]), g.dtype)
    for t, o in np.ndindex(*places.shape):
        out[places[t, o]] += weights[t, o] * moved[o]
    return np.moveaxis(out, 0, dim)


_PLACES = np.array([[0, 0, 2], [1, 0, 2]])
_WEIGHTS = np.array([[0.25, 0.5, 1.0], [0.75, 0.5, 0.0]], np.float32)


def _samples(rng: Any) -> Iterable[Sample]:
    for shape, dim in (((3, 2), 0), ((2, 3), 1), ((2, 3, 2), 1)):
        yield Sample((rng.normal(size=shape), _PLACES, _WEIGHTS), {"dim": dim})


def _back_samples(rng: Any) -> Iterable[Sample]:
    for shape, dim in (((3, 2), 0), ((2, 3), 1), ((2, 3, 2), 1)):
        yield Sample((rng.normal(size=shape), _PLACES, _WEIGHTS), {"dim": dim, "size": 4})


def _back_vjp(m: Any, g: Any, _y: Any, _g: Any, places: Any, weights: Any, *, dim: int, size: int) -> Any:
    return m.resample(g, places, weights, dim=dim)


resample = define(
    "resample",
    workspace=2,
    signature=takes(3, mixed=True, dim=DIM),
    onnx=rules.resample,
    family="contraction",
    work=weighted_places,
    forward=_resample,
    infer=_infer,
    vjp=(
        lambda m, g, _y, x_spec, places, weights, *, dim: m.resample_back(
            g, places, weights, dim=dim, size=x_spec.shape[dim]
        ),
        None,
        None,
    ),
    batch=_one_further("resample"),
    reference=_reference,
    samples=_samples,
    grad_name="UpsampleBackward0",
)

resample_back = define(
    "resample_back",
    signature=takes(3, mixed=True, size=COUNT, dim=DIM),
    onnx=rules.resample_back,
    family="contraction",
    work=weighted_places,
    forward=_resample_back,
    infer=_back_infer,
    vjp=(_back_vjp, None, None),
    batch=_one_further("resample_back"),
    reference=_back_reference,
    samples=_back_samples,
)
