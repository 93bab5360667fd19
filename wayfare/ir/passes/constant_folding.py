"""Constant folding: steps on constants are computed once. Used for plans and for exported programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.spec import spec_of
from wayfare.core.symbolic_sizes import symbols_in
from wayfare.ir.graph import Value, has_slots

# A folded result may be this many bytes larger than its inputs.
_GROWTH = 4096


def folded(op: Op, inputs: Sequence[Value], attrs: dict[str, Any]) -> list[Array] | None:
    """The results of an op on constants; None if they must, or should, be computed at each run."""
    arrays: list[Array] = []
    for v in inputs:
        array = constant_array(v)
        if array is None:
            return None
        arrays.append(array)
    if not arrays or "key" in attrs or op.family == "update" or has_slots(attrs) or symbols_in(attrs):
        return None
    specs = op.infer(*map(spec_of, arrays), **attrs)
    size = sum(math.prod(s.shape) * s.dtype.itemsize for s in (specs if isinstance(specs, (tuple, list)) else (specs,)))
    if size > _GROWTH + sum(_bytes(op, a) for a in arrays):
        return None
    made = op.forward_for([a.dtype for a in arrays])(*arrays, **attrs)
    # Copies, because a view would keep the whole base alive.
    return [np.array(r) for r in (made if isinstance(made, (tuple, list)) else (made,))]


def constant_array(v: Value) -> Array | None:
    """The array of a constant: a leaf, or a number that is broadcast; else None."""
    step = v.step
    if step.kind == "op":
        inner = step.inputs[0] if step.name == "expand" else None
        number = constant_array(inner) if inner is not None and inner.step.kind == "number" else None
        return None if number is None or symbols_in(v.shape) else np.broadcast_to(number, v.shape)
    if step.kind not in ("number", "array") or symbols_in(step.data):
        return None
    return np.asarray(step.data, v.dtype)


def _bytes(op: Op, array: Array) -> int:
    """The size of an input. A broadcast number counts as one number: computing with it is faster than reading a
    result."""
    return array.itemsize if op.family == "elementwise" and not any(array.strides) else array.nbytes
