"""Joining: several tensors become one, along a dimension they have (cat) or along a new one (stack)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.core.errors import ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, joint
from wayfare.core.signature import DIM, MANY, takes
from wayfare.core.spec import Spec
from wayfare.ops import _ragged as ragged
from wayfare.ops._define import define, in_front


def _cat_infer(*xs: Spec, dim: int) -> Spec:
    first = xs[0]
    for number, x in enumerate(xs):
        same = x.ndim == first.ndim and all(
            a == b for axis, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)) if axis != dim
        )
        if not same:
            raise ShapeError(f"cat: tensor 0 is {first} and tensor {number} is {x}; "
                             f"all sizes but that of dimension {dim} must be equal")  # fmt: skip
    shape = list(first.shape)
    shape[dim] = sum(x.shape[dim] for x in xs)
    return Spec(shape, first.dtype)


def _cat(*xs: Array, dim: int) -> Array:
    # NumPy's own result lies column after column if all parts do; PyTorch's never does, so that `.view` works on it.
    return np.ascontiguousarray(np.concatenate(xs, axis=dim))


def _cat_vjp(m: Any, needs: tuple[bool, ...], g: Any, _y: Any, *xs_spec: Spec, dim: int) -> list[Any]:
    """The gradient of each input is its part of g, as a view."""
    grads: list[Any] = []
    start = 0
    for x, wanted in zip(xs_spec, needs, strict=True):
        length = x.shape[dim]
        grads.append(m.slice(g, dim=dim, start=start, stop=start + length, step=1) if wanted else None)
        start += length
    return grads


def _cat_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(2, 3)), rng.normal(size=(1, 3))), {"dim": 0})
    yield Sample((rng.normal(size=(2, 3)), rng.normal(size=(2, 0)), rng.normal(size=(2, 2))), {"dim": 1})
    yield Sample((rng.normal(size=(3, 2)).T,), {"dim": 1})


cat = define(
    "cat",
    signature=takes(1, MANY, dim=DIM),
    onnx=lambda b, *given, dim: b.node("Concat", *given, axis=dim),
    family="joining",
    fusible_gradient=True,
    forward=_cat,
    infer=_cat_infer,
    vjp=joint(_cat_vjp),
    batch=in_front("cat"),
    ragged=ragged.cat,
    reference=lambda *xs, dim: np.moveaxis(np.array([row for x in xs for row in np.moveaxis(x, dim, 0)]), 0, dim),
    samples=_cat_samples,
)


def _stack(*xs: Array, dim: int) -> Array:
    shape = xs[0].shape
    if any(x.shape != shape for x in xs):
        raise ValueError("shapes differ")  # the shape rule says it better
    shape = (*shape[:dim], 1, *shape[dim:])
    return _cat(*[x.reshape(shape) for x in xs], dim=dim)


def _stack_infer(*xs: Spec, dim: int) -> Spec:
    shape = xs[0].shape
    for number, x in enumerate(xs):
        if x.shape != shape:
            raise ShapeError(f"stack: tensor 0 is {xs[0]} and tensor {number} is {x}; shapes must be equal",
                             fix="Use wf.cat to join tensors of different lengths.")  # fmt: skip
    return Spec((*shape[:dim], len(xs), *shape[dim:]), xs[0].dtype)


def _stack_vjp(m: Any, needs: tuple[bool, ...], g: Any, _y: Any, *_xs: Any, dim: int) -> list[Any]:
    return [m.select(g, dim=dim, index=i) if wanted else None for i, wanted in enumerate(needs)]


def _stack_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(2, 3)), rng.normal(size=(3, 2)).T), {"dim": 1})
    yield Sample((rng.normal(size=()), rng.normal(size=()), rng.normal(size=())), {"dim": 0})
    yield Sample((rng.normal(size=(2, 0)),), {"dim": 2})


stack = define(
    "stack",
    signature=takes(1, MANY, grows=True, dim=DIM),
    onnx=lambda b, *given, dim: b.node("Concat", *[b.node("Unsqueeze", x, [dim]) for x in given], axis=dim),
    family="joining",
    fusible_gradient=True,
    forward=_stack,
    infer=_stack_infer,
    vjp=joint(_stack_vjp),
    batch=in_front("stack"),
    reference=lambda *xs, dim: np.moveaxis(np.array([x.tolist() for x in xs]).reshape(len(xs), *xs[0].shape), 0, dim),
    samples=_stack_samples,
)
