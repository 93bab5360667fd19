"""Constant folding: steps on constants are computed once. Used for plans and for exported programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.spec import spec_of

# A folded result may be this many bytes larger than its inputs.
_GROWTH = 4096


def computed(op: Op, arrays: Sequence[Array], attrs: dict[str, Any]) -> list[Array] | None:
    """The results of an op on constants; None if they should be computed at each run."""
    if not arrays or "key" in attrs:
        return None
    specs = op.infer(*map(spec_of, arrays), **attrs)
    size = sum(math.prod(s.shape) * s.dtype.itemsize for s in (specs if isinstance(specs, (tuple, list)) else (specs,)))
    if size > _GROWTH + sum(_bytes(op, a) for a in arrays):
        return None
    made = op.forward(*arrays, **attrs)
    # Copies, because a view would keep the whole base alive.
    return [np.array(r) for r in (made if isinstance(made, (tuple, list)) else (made,))]


def _bytes(op: Op, array: Array) -> int:
    """The size of an input. A broadcast number counts as one number: computing with it is faster than reading a
    result."""
    return array.itemsize if op.family == "elementwise" and not any(array.strides) else array.nbytes
