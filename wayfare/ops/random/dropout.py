"""Dropout as one record. The mask is a function of the key: backward draws it again instead of keeping it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.codegen.routines.dropout_mask import Key, dropout_mask, dropped_out
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import KEY, NUMBER, SIZES, takes
from wayfare.core.spec import Shape, Spec, bool_
from wayfare.ops._define import define
from wayfare.ops.random.onnx_rules import NO_DRAWS
from wayfare.ops.random.onnx_rules import dropout as _without_dropout


def _dropout(x: Array, *, p: float, key: Key, shape: Shape) -> Array:
    if 0 < p < 1 and shape == x.shape and x.size:
        return dropped_out(x, key, p)
    factor = dropout_mask(key, shape, p).astype(x.dtype)
    if p < 1:
        factor *= x.dtype.type(1 / (1 - p))
    return np.asarray(x * factor)


def _dropout_reference(x: Array, p: float, key: Key, shape: Shape) -> Array:
    """Element by element: the elements of an array of ones that survive must be the same in every call."""
    kept = np.broadcast_to(dropout_mask(key, shape, p), x.shape)
    flat = [v / (1 - p) if k else 0.0 for v, k in zip(x.ravel(), kept.ravel(), strict=True)]
    return np.array(flat).reshape(x.shape)


def _dropout_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(4, 5)),), {"p": 0.3, "key": (7, 1), "shape": (4, 5)})
    yield Sample((rng.normal(size=(2, 3, 4)),), {"p": 0.5, "key": (7, 2), "shape": (2, 3, 1)})
    yield Sample((rng.normal(size=()),), {"p": 0.0, "key": (7, 3), "shape": ()})
    yield Sample((rng.normal(size=(3, 2)).T,), {"p": 1.0, "key": (7, 3), "shape": (2, 3)})


# `shape` is the shape of the mask, broadcast against the input: whole channels share one decision.
dropout = define(
    "dropout",
    signature=takes(1, shape=SIZES, key=KEY, p=NUMBER),
    onnx=_without_dropout,
    family="random",
    forward=_dropout,
    infer=lambda x, *, p, key, shape: x,
    vjp=(lambda m, g, _y, _x, *, p, key, shape: m.dropout(g, p=p, key=key, shape=shape),),
    batch=lambda m, size, inputs, batched, attrs: m.dropout(inputs[0], **attrs),
    reference=_dropout_reference,
    samples=_dropout_samples,
)

random_mask = define(
    "random_mask",
    signature=takes(0, shape=SIZES, key=KEY, p=NUMBER),
    onnx=NO_DRAWS,
    family="random",
    forward=lambda *, key, shape, p: dropout_mask(key, shape, p),
    infer=lambda *, key, shape, p: Spec(shape, bool_),
    vjp=None,
    reference=lambda *, key, shape, p: dropout_mask(key, shape, p),
    samples=lambda rng: [Sample((), {"key": (7, 1), "shape": (3, 4), "p": 0.4})],
    random=True,
)
