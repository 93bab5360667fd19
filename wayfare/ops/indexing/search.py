"""Searching: the place of values in sorted numbers, membership, one-hot rows. Nothing here has a gradient."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from wayfare.core.errors import OperationError, ShapeError
from wayfare.core.flops import by_searching, per_output
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, checks_values
from wayfare.core.signature import COUNT, DTYPE, FLAG, takes
from wayfare.core.spec import DType, Spec, bool_, int32, int64
from wayfare.ops._define import define, expand_unbatched, in_front
from wayfare.ops.indexing import onnx_rules as rules
from wayfare.ops.indexing.advanced import check_bounds


def _searchsorted(row: Array, values: Array, *, right: bool, dtype: DType) -> Array:
    side: Any = "right" if right else "left"
    if row.ndim == 1:
        out = np.searchsorted(row, values, side)
    else:
        if row.shape[:-1] != values.shape[:-1]:
            raise ValueError("the rows do not fit")
        out = np.empty(values.shape, np.int64)
        for at in np.ndindex(*row.shape[:-1]):
            out[at] = np.searchsorted(row[at], values[at], side)
    return np.asarray(out).astype(dtype.numpy)


def _searchsorted_infer(row: Spec, values: Spec, *, right: bool, dtype: DType) -> Spec:
    if not row.ndim or (row.ndim > 1 and row.shape[:-1] != values.shape[:-1]):
        raise ShapeError(f"searchsorted: {row} has other rows than {values}")
    return Spec(values.shape, dtype)


def _searchsorted_reference(row: Array, values: Array, right: bool, dtype: DType) -> Array:
    place = bisect_right if right else bisect_left
    out = np.zeros(values.shape)
    for at in np.ndindex(*values.shape):
        out[at] = place((row if row.ndim == 1 else row[at[:-1]]).tolist(), values[at])
    return out


def _searchsorted_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    row, values = inputs
    if not batched[0] and row.ndim == 1:
        return m.searchsorted(row, values, **attrs)
    row, values = expand_unbatched(m, size, inputs, batched)
    shape = tuple(values.shape)
    if row.ndim == 2:  # One row of numbers for all of an example's values: they are looked up as one row too.
        found = m.searchsorted(row, m.reshape(values, shape=(size, -1)), **attrs)
        return m.reshape(found, shape=shape)
    return m.searchsorted(row, values, **attrs)


searchsorted = define(
    "searchsorted",
    workspace=1,
    signature=takes(2, dtype=DTYPE, right=FLAG),
    onnx=rules.searchsorted,
    family="indexing",
    work=by_searching,
    forward=_searchsorted,
    infer=_searchsorted_infer,
    vjp=None,
    batch=_searchsorted_batch,
    reference=_searchsorted_reference,
    samples=lambda rng: [
        Sample((np.array([0.0, 1, 1, 3]), np.array([[1.0, 4], [-1, 2]])), {"right": False, "dtype": int64}),
        Sample((np.array([0.0, 1, 1, 3]), np.array([1.0, 4])), {"right": True, "dtype": int32}),
        Sample((np.sort(rng.normal(size=(2, 3))), rng.normal(size=(2, 4))), {"right": False, "dtype": int64}),
    ],
)


def _isin_batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
    """Everything of one example against everything of its tests."""
    if not batched[1]:
        return m.isin(inputs[0], inputs[1], **attrs)
    elements, tests = expand_unbatched(m, size, inputs, batched)
    pairs = m.reshape(elements, shape=(*elements.shape, 1)) == m.reshape(
        tests, shape=(size,) + (1,) * (elements.ndim - 1) + (-1,)
    )
    found = m.any(pairs, dim=(pairs.ndim - 1,), keepdim=False)
    return m.logical_not(found) if attrs["invert"] else found


isin = define(
    "isin",
    signature=takes(2, invert=FLAG),
    onnx=rules.isin,
    family="indexing",
    work=per_output(),
    forward=lambda elements, tests, *, invert: np.isin(elements, tests, invert=invert),
    infer=lambda elements, tests, *, invert: Spec(elements.shape, bool_),
    vjp=None,
    batch=_isin_batch,
    reference=lambda elements, tests, invert: np.array(
        [(e in tests.ravel().tolist()) != invert for e in elements.ravel().tolist()]
    ).reshape(elements.shape),
    samples=lambda rng: [
        Sample((np.array([[1.0, 2], [3, 4]]), np.array([2.0, 4, 5])), {"invert": False}),
        Sample((np.array([1, 2, 3]), np.array([[2], [7]])), {"invert": True}),
    ],
)


@checks_values
def _one_hot(x: Array, *, classes: int) -> Array:
    check_bounds("one_hot", x, classes, -1, error=OperationError)
    return np.equal(x[..., None], np.arange(classes)).astype(np.int64)


one_hot = define(
    "one_hot",
    workspace=lambda specs, attrs: attrs["classes"],
    signature=takes(1, classes=COUNT),
    onnx=rules.one_hot,
    family="indexing",
    forward=_one_hot,
    infer=lambda x, *, classes: Spec((*x.shape, classes), int64),
    vjp=None,
    batch=in_front("one_hot"),
    reference=lambda x, classes: np.eye(classes)[x.ravel()].reshape(*x.shape, classes),
    samples=lambda rng: [
        Sample((np.array([[1, 0], [2, 2]]),), {"classes": 3}),
        Sample((np.array(1),), {"classes": 2}),
        Sample((np.zeros((0, 2), np.int64),), {"classes": 2}),
    ],
)
